// BPE-dropout of words in C++. bpe_dropout.py describes it, and `Merger` there is the same in Python.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr uint64_t STEP = 0x9E3779B97F4A7C15;
constexpr uint32_t NO_RANK = UINT32_MAX;
constexpr uint64_t NO_MERGE = (uint64_t)NO_RANK << 32;

uint64_t hash(uint64_t x) {  // `_hash` of draws.py
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

bool is_dropped(uint64_t key, uint64_t attempt, double p) {  // `uniform` of draws.py is below p
    return (hash(key + attempt * STEP) >> 11) * 0x1p-53 < p;
}

uint64_t pair_of(uint64_t first, uint64_t second) { return first << 32 | second; }

struct Merge {
    uint64_t pair;
    uint32_t rank, symbol;  // of the pair, and what it becomes
};

struct Table {  // of all merges, by the hash of their pairs. A slot without a rank is free
    Merge* slots;
    int64_t n_slots;  // a power of two

    // Return the slot of a pair: its merge, or a free slot.
    Merge& at(uint64_t pair) const {
        uint64_t i = pair * STEP >> 32;
        while (true) {
            Merge& slot = slots[i++ & (n_slots - 1)];
            if (slot.pair == pair || slot.rank == NO_RANK) return slot;
        }
    }
};

struct Symbol {
    uint32_t id, rank, merged;  // `rank` and `merged`: of its pair with the next symbol
};

// Merge the symbols of a word.
void merge_symbols(std::vector<Symbol>& word, const Table& table, uint64_t key, double p) {
    auto look_up = [&](size_t i) {
        const Merge& merge = table.at(pair_of(word[i].id, word[i + 1].id));
        word[i].rank = merge.rank;
        word[i].merged = merge.symbol;
    };
    for (size_t i = 0; i + 1 < word.size(); i++) look_up(i);
    uint64_t attempt = 0, least = 0;  // merges below `least` were dropped since the last one
    while (true) {
        uint64_t best = NO_MERGE;  // rank and place
        for (size_t i = 0; i + 1 < word.size(); i++) {
            const uint64_t merge = (uint64_t)word[i].rank << 32 | i;
            if (merge >= least && merge < best) best = merge;
        }
        if (best == NO_MERGE) return;
        if (is_dropped(key, attempt++, p)) {
            least = best + 1;
            continue;
        }
        const size_t i = (uint32_t)best;
        word[i].id = word[i].merged;
        word.erase(word.begin() + i + 1);
        if (i > 0) look_up(i - 1);
        if (i + 1 < word.size()) look_up(i);
        least = 0;
    }
}

}  // namespace

extern "C" {

extern const char* const source_hash = SOURCE_HASH;

// Put n merges in a table. It has more slots, all free: all bits are set.
void add_merges(const int64_t* firsts, const int64_t* seconds, const int64_t* symbols, int64_t n, Merge* slots,
                int64_t n_slots) {
    const Table table{slots, n_slots};
    for (int64_t i = 0; i < n; i++) {
        const uint64_t pair = pair_of(firsts[i], seconds[i]);
        table.at(pair) = {pair, (uint32_t)i, (uint32_t)symbols[i]};
    }
}

// Merge n words. symbols: of all pieces, one after the other; piece i begins at first[i]. Word i is `ids` from starts[i] to
// starts[i + 1], and becomes `out` from out_starts[i] to out_starts[i + 1]. `out` has room for all symbols of the words.
void merge_words(Merge* slots, int64_t n_slots, const int64_t* symbols, const int64_t* first, const int64_t* ids,
                 const int64_t* starts, const uint64_t* keys, int64_t n, double p, int64_t* out, int64_t* out_starts) {
    const Table table{slots, n_slots};
    std::vector<Symbol> word;
    int64_t* end = out;
    for (int64_t i = 0; i < n; i++) {
        out_starts[i] = end - out;
        const int64_t *begin = ids + starts[i], *stop = ids + starts[i + 1];
        int64_t n_merges = begin - stop;  // symbols without ids
        for (const int64_t* id = begin; id < stop; id++) n_merges += first[*id + 1] - first[*id];
        int64_t attempt = 0;
        while (attempt < n_merges && !is_dropped(keys[i], attempt, p)) attempt++;
        if (attempt == n_merges) {
            end = std::copy(begin, stop, end);
            continue;
        }
        word.clear();
        for (const int64_t* id = begin; id < stop; id++)
            for (int64_t j = first[*id]; j < first[*id + 1]; j++) word.push_back({(uint32_t)symbols[j], NO_RANK, 0});
        merge_symbols(word, table, keys[i], p);
        for (const Symbol& symbol : word) *end++ = symbol.id;
    }
    out_starts[n] = end - out;
}

}  // extern "C"
