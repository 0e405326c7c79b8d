// The kernels of translation on a CPU as C functions. kernels.py describes them, and compiled_search.py the search. level.h has
// the operations in which processors differ.

#include "search.h"

extern "C" {

// What the layout of packed weights depends on: the outputs of a panel, and the inputs of a step in int8.
extern const long panel = PANEL, inputs = INPUTS;

extern const char* const source_hash = SOURCE_HASH;

extern const long int8_is_faster = INT8_IS_FASTER;  // than fp32

// Pack W (n, k) fp32 into bytes (panels, groups, PANEL, INPUTS), scales (n), and zeros (n), the share of ZERO in each sum.
void pack_int8(const float* w, long n, long k, int8_t* packed, float* scales, int32_t* zeros) {
    const long panels = (n + PANEL - 1) / PANEL;
    std::memset(packed, 0, panels * groups(k) * PANEL * INPUTS);
    for (long j = 0; j < n; j++) {
        float largest = 0;
        for (long i = 0; i < k; i++) largest = std::max(largest, std::fabs(w[j * k + i]));
        float inverse = largest > 0 ? 127.0f / largest : 0.0f;
        int32_t sum = 0;
        for (long i = 0; i < k; i++) {
            int8_t q = (int8_t)std::nearbyint(w[j * k + i] * inverse);
            packed[((j / PANEL * groups(k) + i / INPUTS) * PANEL + j % PANEL) * INPUTS + i % INPUTS] = q;
            sum += q;
        }
        scales[j] = largest / 127.0f;
        zeros[j] = ZERO * sum;
    }
}

// Pack W (n, k) into floats (panels, k, PANEL).
void pack_fp32(const float* w, long n, long k, float* packed) {
    std::memset(packed, 0, (n + PANEL - 1) / PANEL * PANEL * k * sizeof(float));
    for (long j = 0; j < n; j++)
        for (long i = 0; i < k; i++) packed[(j / PANEL * k + i) * PANEL + j % PANEL] = w[j * k + i];
}

// Compute y (m, n) = W x + bias of x (m, k), relu, plus residual (null: none). In int8 each row of x has its own scale.
void linear(const Linear* w, const float* x, long m, long relu, const float* residual, float* y) {
    product(x, m, *w, relu != 0, residual, y);
}

// Compute the attention of n queries: `attention` above.
void attend(const float* queries, long q_stride, const float* keys, const float* values, long kv_stride,
            const int32_t* index, long width, const int32_t* lengths, const int32_t* row_of_query, long n, long heads,
            long d_k, long d_v, float* out) {
    Visible visible{index, width, lengths, row_of_query};
    attention(queries, q_stride, keys, values, kv_stride, visible, 0, n, heads, d_k, d_v, out);
}

// Compute y (m, n), the rows of x (m, n) normalised.
void norm(const float* x, long m, long n, const Norm* norm, float* y) { normalised(x, m, n, *norm, y); }

// Find the `count` most likely tokens of each row by logits (n, v): log-probabilities, best first, and ids.
void best(const float* logits, long n, long v, long count, float* values, int64_t* ids) {
    for (long i = 0; i < n; i++) {
        Best best{count, values + i * count, ids + i * count};
        best.clear();
        for (long j = 0; j < v; j += GROUP) best.add(logits + i * v + j, j, std::min(GROUP, v - j), nullptr, nullptr, 0);
        best.finish();
    }
}

// The same for the logits of x (n, k), of which `output` makes (n, v), without those of `barred` tokens among the best.
void best_of(const Linear* output, const float* x, long n, long count, const int64_t* barred, long n_barred, float* values,
             int64_t* ids) {
    Tokens all{*output, nullptr};
    best_among(all, nullptr, x, n, count, barred, n_barred, values, ids);
}

// The same for the tokens of a shortlist: the `common` ones, and of row i those of own[i]. The sums of a row depend on its
// own tokens only.
void best_of_lists(const Tokens* common, const Tokens* const* own, const float* x, long n, long count, const int64_t* barred,
                   long n_barred, float* values, int64_t* ids) {
    best_among(*common, own, x, n, count, barred, n_barred, values, ids);
}

// Replace x by the output of the stack.
void stack(const Stack* stack, const Rows* rows, float* x) { through(*stack, *rows, x); }

// Decode one more token for each row: `decode` above.
void decode_step(const Stack* stack, const Rows* rows, const Step* step, float* x) { decode(*stack, *rows, *step, x); }

// Begin a search, which `search_end` must end; null where memory runs out.
Search* search_begin(const Request* request) {
    try {
        return new Search(*request);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Make at most n steps. Return 0 if the search goes on, 1 if it is done, 2 if it fails, and 3 if memory runs out.
long search_steps(Search* search, long n) {
    try {
        while (n-- > 0)
            if (!search->step()) return search->fails ? 2 : 1;
        return 0;
    } catch (const std::bad_alloc&) {
        return 3;
    }
}

// Say where the outputs are, and how many tokens the hypotheses have.
void search_outputs(const Search* search, Outputs* to) {
    *to = {search->lengths.data(), search->ids.data(), search->values.data(), (long)search->ids.size(), search->length};
}

void search_end(Search* search) { delete search; }

}  // extern "C"
