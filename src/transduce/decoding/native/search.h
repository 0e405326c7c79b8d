// A whole search without constraints: what Beam of beam.py and Greedy of rows.py return, to the last bit, for sentences that
// begin together. Only kernels.cpp includes it.

#pragma once

#include <cstdlib>
#include <new>
#include <numeric>

#include "layers.h"

namespace {

struct Request {
    const Stack* stack;
    Step step;  // with only the embedding
    Rows rows;  // with n sentences, `cross`, and `source`, of sentence i line i
    const Tokens* common;      // the tokens that all sentences choose from,
    const Tokens* const* own;  // and (unless null) those of each sentence
    long beam, n_best, candidates, bos, eos, min_tokens, lookahead;  // lookahead < 0: none
    long no_repeat_ngram;  // so many tokens never come again in this order; 0: any may
    const int64_t* barred;  // tokens that never come, and last eos, which comes from min_tokens on
    long n_barred;
    const int64_t* max_lengths;  // of each sentence
    const double* penalties;     // of each length
};

struct Outputs {  // of each sentence n_best lengths, 0 where there are fewer; all their tokens, and log-probabilities
    const int64_t *lengths, *ids;
    const float* values;
    long n_tokens;
    long length;  // of the hypotheses in the last step
};

struct Token {  // the last one of a hypothesis
    long parent;  // the place in the beam of the hypothesis that it extends
    int64_t id;
    float value;   // its log-probability
    double total;  // the log-probability of the hypothesis
};

struct End {  // a hypothesis that is finished or cut
    double score;
    long before;  // tokens before the last one
    Token last;
};

struct Sentence {
    long number, max_length;
    long first;                 // its first row in the last step
    std::vector<Token> live;    // the hypotheses in the beam, the best first
    std::vector<Token> tokens;  // the beams of all steps
    std::vector<End> ends;      // the best n_best, the best first
};

// Tables of keys and values, one of each layer. Their rows that lead to no hypothesis any more are written again before the
// tables grow.
class Memory {
  public:
    std::vector<float*> tables;

    Memory(long layers, long width) : tables(layers), width(width) {}
    Memory(const Memory&) = delete;
    ~Memory() { std::for_each(tables.begin(), tables.end(), std::free); }

    // Return n rows to write to. in_use(rows): returns for each of the rows whether it leads to a hypothesis.
    template <class InUse>
    const int32_t* rows(long n, const InUse& in_use) {
        if (written + n > (long)free.size()) {
            const std::vector<bool> used = in_use(room);
            free.clear();
            for (long row = 0; row < room; row++)
                if (!used[row]) free.push_back((int32_t)row);
            const long missing = std::max(n, room / 2) - (long)free.size();
            if (missing > 0) grow(std::max(room + missing, 2 * room));
            written = 0;
        }
        written += n;
        return &free[written - n];
    }

    void grow(long rows) {
        for (float*& table : tables) {
            void* larger = std::realloc(table, rows * width * sizeof(float));
            if (!larger) throw std::bad_alloc();
            table = (float*)larger;
        }
        for (; room < rows; room++) free.push_back((int32_t)room);
    }

  private:
    long width, room = 0, written = 0;
    std::vector<int32_t> free;  // rows to write to; the first ones are written
};

struct History {  // of each row: the rows of the tables that lead to it, how many, and its line of the source
    std::vector<int32_t> index, ages, line;
    void resize(long n, long width) { index.resize(n * width), ages.resize(n), line.resize(n); }
};

constexpr long LEAST_ROOM = 256;  // rows of a new table: more than one sentence needs in most searches
constexpr double NOTHING = -std::numeric_limits<double>::infinity();
constexpr float REPEATED = -1e4f;  // log-probability of a token that no_repeat_ngram bars: BARRED of repetition.py

class Search {
  public:
    std::vector<int64_t> lengths, ids;  // see Outputs
    std::vector<float> values;
    bool fails = false;  // after `length` tokens the model gave NaN, or probability zero to all that may come next
    long length = 0;     // of the hypotheses

    explicit Search(const Request& request)
        : request(request), memory(request.stack->n_layers, request.stack->heads * (request.stack->d_k + request.stack->d_v)) {
        const long n = request.rows.n;
        memory.grow(std::max(n * request.rows.source.width, LEAST_ROOM));
        past.resize(n, 0);
        std::iota(past.line.begin(), past.line.end(), 0);
        for (long i = 0; i < n; i++) sentences.push_back({i, request.max_lengths[i], i, {{0, request.bos, 0, 0}}, {}, {}});
        outputs.resize(n);
    }

    // Make every hypothesis one token longer. Return true if the search goes on.
    bool step() {
        decode_rows();
        std::vector<Sentence> stay;
        for (Sentence& sentence : sentences) {
            const bool goes_on = extend(sentence);
            if (fails) return false;
            (goes_on ? stay.emplace_back() : outputs[sentence.number]) = std::move(sentence);
        }
        sentences.swap(stay);
        length++;
        if (sentences.empty()) collect();
        return !sentences.empty();
    }

  private:
    const Request request;
    Memory memory;
    History past, now;
    std::vector<Sentence> sentences, outputs;  // that are searched; that are done
    std::vector<int64_t> last_ids, selected, best_ids;
    std::vector<const Tokens*> own;
    std::vector<float> x, best_values;
    std::vector<Token> best;
    long n_found = 0;  // the best tokens of each row
    std::vector<std::vector<int64_t>> repeating;  // of each row, the tokens that no_repeat_ngram bars
    std::vector<int64_t> output;

    // Find the most likely tokens after each hypothesis.
    void decode_rows() {
        last_ids.clear(), selected.clear(), own.clear();
        n_found = request.candidates + find_repeating();
        for (Sentence& sentence : sentences) {
            const long first = (long)selected.size();
            for (const Token& token : sentence.live) {
                last_ids.push_back(token.id);
                selected.push_back(sentence.first + token.parent);
                if (request.own) own.push_back(request.own[sentence.number]);
            }
            sentence.first = first;
        }
        const long n = (long)selected.size(), n_best = n * n_found;
        now.resize(n, length + 1);
        x.resize(n * request.stack->d_model), best_values.resize(n_best), best_ids.resize(n_best);
        Rows rows = request.rows;
        rows.n = n, rows.added = memory.rows(n, [&](long room) { return in_use(room); }), rows.tables = memory.tables.data();
        rows.self = {now.index.data(), length + 1, now.ages.data(), nullptr}, rows.source.row_of_query = now.line.data();
        Step step = request.step;
        step.ids = last_ids.data(), step.selected = selected.data(), step.last_source = past.line.data();
        step.past = past.index.data(), step.ages = past.ages.data(), step.past_width = length;
        decode(*request.stack, rows, step, x.data());
        const long n_barred = request.n_barred - (length >= request.min_tokens);  // eos is the last one
        best_among(*request.common, request.own ? own.data() : nullptr, x.data(), n, n_found, request.barred, n_barred,
                   best_values.data(), best_ids.data());
        for (long row = 0; row < (long)repeating.size(); row++) lower_repeating(row);
        std::swap(past, now);
    }

    // Find the tokens that no_repeat_ngram bars after each hypothesis. Return how many there are at most.
    long find_repeating() {
        const long n = request.no_repeat_ngram;
        size_t most = 0;
        repeating.clear();
        if (n == 0) return 0;
        for (const Sentence& sentence : sentences) {
            for (const Token& token : sentence.live) {
                std::vector<int64_t>& barred = repeating.emplace_back();
                output.resize(length);
                if (length > 0) trace(sentence, token, length - 1, [&](long place, const Token& of) { output[place] = of.id; });
                for (long i = 0; i + n <= length; i++)
                    if (std::equal(output.end() - (n - 1), output.end(), output.begin() + i)) barred.push_back(output[i + n - 1]);
                most = std::max(most, barred.size());
            }
        }
        return (long)most;
    }

    // Lower the log-probabilities of the barred ones among the best tokens of a row, and order these again.
    void lower_repeating(long row) {
        const std::vector<int64_t>& barred = repeating[row];
        float* values = &best_values[row * n_found];
        int64_t* ids = &best_ids[row * n_found];
        if (barred.empty() || std::isnan(values[0])) return;
        std::vector<std::pair<float, int64_t>> order;
        for (long j = 0; j < n_found; j++) {
            const bool is_barred = std::find(barred.begin(), barred.end(), ids[j]) != barred.end();
            order.push_back({is_barred && values[j] > NOTHING ? -REPEATED : -values[j], ids[j]});
        }
        std::sort(order.begin(), order.end());
        for (long j = 0; j < n_found; j++) values[j] = -order[j].first, ids[j] = order[j].second;
    }

    // Return for each row of the tables whether it leads to a hypothesis.
    std::vector<bool> in_use(long room) const {
        std::vector<bool> used(room);
        for (int64_t row : selected)
            for (long t = 0; t < length; t++) used[past.index[row * length + t]] = true;
        return used;
    }

    // Extend the hypotheses of a sentence by their most likely tokens. Return true if its search goes on.
    bool extend(Sentence& sentence) {
        find_best(sentence);
        const long n_tokens = length + 1;
        const double penalty = request.penalties[n_tokens];
        sentence.live.clear();
        for (const Token& token : best) {
            const End end{token.total / penalty, length, token};
            if (token.id == request.eos) add(sentence, end);
            else if ((long)sentence.live.size() < request.beam) sentence.live.push_back(token);
        }
        fails |= sentence.live.empty() && sentence.ends.empty();
        if (n_tokens == sentence.max_length) {  // it is cut
            for (const Token& token : sentence.live)
                if (!is_full(sentence)) sentence.ends.push_back({token.total / penalty, length, token});
            return false;
        }
        const long longest = request.lookahead < 0 ? sentence.max_length : std::min(sentence.max_length, n_tokens + request.lookahead);
        const double greatest = std::max(request.penalties[n_tokens + 1], request.penalties[longest]);
        auto can_win = [&](const Token& token) { return !is_full(sentence) || sentence.ends.back().score < token.total / greatest; };
        if (sentence.live.empty() || !can_win(sentence.live.front())) return false;
        // Extensions of one that cannot win would take the places of others that cannot win, and of no others.
        while (request.lookahead < 0 && !can_win(sentence.live.back())) sentence.live.pop_back();
        sentence.tokens.resize(length * request.beam);
        sentence.tokens.insert(sentence.tokens.end(), sentence.live.begin(), sentence.live.end());
        return true;
    }

    // Let `best` be the most likely extensions of the hypotheses of a sentence, best first, of equals the first.
    void find_best(const Sentence& sentence) {
        const long count = request.candidates;
        best.clear();
        for (long parent = 0; parent < (long)sentence.live.size(); parent++) {
            const float* values = &best_values[(sentence.first + parent) * n_found];
            fails |= std::isnan(values[0]);
            for (long j = 0; j < count && values[j] > NOTHING; j++) {
                const int64_t id = best_ids[(sentence.first + parent) * n_found + j];
                const Token token{parent, id, values[j], sentence.live[parent].total + values[j]};
                auto exceeds = [](const Token& a, const Token& b) { return a.total > b.total; };
                const auto place = std::upper_bound(best.begin(), best.end(), token, exceeds);
                if (place - best.begin() == count) break;
                if ((long)best.size() == count) best.pop_back();
                best.insert(place, token);
            }
        }
    }

    bool is_full(const Sentence& sentence) const { return (long)sentence.ends.size() == request.n_best; }

    // Let an end compete for a place, of equals the first stays.
    void add(Sentence& sentence, const End& end) {
        auto exceeds = [](const End& a, const End& b) { return a.score > b.score; };
        sentence.ends.insert(std::upper_bound(sentence.ends.begin(), sentence.ends.end(), end, exceeds), end);
        if ((long)sentence.ends.size() > request.n_best) sentence.ends.pop_back();
    }

    // Call each(place, token) for the tokens of a hypothesis, from the last one, which has `before` others before it.
    template <class Each>
    void trace(const Sentence& sentence, Token token, long before, const Each& each) const {
        for (long place = before;; token = sentence.tokens[--place * request.beam + token.parent]) {
            each(place, token);
            if (place == 0) break;
        }
    }

    void collect() {
        for (const Sentence& sentence : outputs) {
            for (const End& end : sentence.ends) {
                lengths.push_back(end.before + 1);
                const size_t first = ids.size();
                ids.resize(first + end.before + 1), values.resize(ids.size());
                trace(sentence, end.last, end.before, [&](long place, const Token& token) {
                    ids[first + place] = token.id, values[first + place] = token.value;
                });
            }
            lengths.resize(lengths.size() + request.n_best - sentence.ends.size());
        }
    }
};

}  // namespace
