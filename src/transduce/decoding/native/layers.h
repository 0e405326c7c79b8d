// Attention over an index of rows, norms, and these with the products of products.h composed to the layers of an encoder or
// decoder. Rows are independent of one another to the last bit. Only search.h and kernels.cpp include it.

#pragma once

#include "ranking.h"

namespace {

// Return the products of a query of d floats and LANES keys, which begin at an offset of their rows.
inline Floats scores_of(const float* query, const float* const (&rows)[LANES], long offset, long d) {
    Floats sums[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sums[j] = zeros();
    long i = 0;
    for (; i + LANES <= d; i += LANES) {
        const Floats q = load(query + i);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) sums[j] = multiply_add(q, load(rows[j] + offset + i), sums[j]);
    }
    if (i < d) {
        const Floats q = load(query + i, d - i, zeros());
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) sums[j] = multiply_add(q, load(rows[j] + offset + i, d - i, zeros()), sums[j]);
    }
    return row_sums(sums);
}

struct Visible {  // query i sees the first lengths[j] of the rows index[j * width ...], where j = row_of_query[i]
    const int32_t* index;
    long width;
    const int32_t* lengths;       // null: all are `width`
    const int32_t* row_of_query;  // null: j = i
};

constexpr long WIDE = 4 * LANES;  // columns of values that are summed together

// Write to V registers of `to`, d floats, the sum of n rows of values times weights, times share. `rows` names the rows,
// which are `stride` floats apart.
template <int V>
void weighted_sum(const float* values, long stride, const int32_t* rows, const float* weights, long n, long d, float share,
                  float* to) {
    Floats sums[V];
    const long last = d - (V - 1) * LANES;
    for (int j = 0; j < V; j++) sums[j] = zeros();
    for (long t = 0; t < n; t++) {
        const float* value = values + rows[t] * stride;
        Floats weight = all(weights[t]);
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
            Floats v = j + 1 < V ? load(value + j * LANES) : load(value + j * LANES, last, zeros());
            sums[j] = multiply_add(weight, v, sums[j]);
        }
    }
    for (int j = 0; j < V; j++) store(to + j * LANES, sums[j] * all(share), j + 1 < V ? LANES : last);
}

// Replace n scores by e^(score - highest) and return 1 / their sum.
float exponentials(float* scores, long n) {
    Floats most = LOWEST, mass = zeros();
    for (long t = 0; t < n; t += LANES) most = max(most, load(scores + t, n - t, LOWEST));
    const Floats highest = all(greatest(most));
    for (long t = 0; t < n; t += LANES) {
        Floats e = exponential(load(scores + t) - highest);
        store(scores + t, e);
        mass = mass + first(e, n - t);
    }
    return 1.0f / sum(mass);
}

// Compute the attention of n queries, from number `begin` of `visible` on, over keys and values. Rows of queries are
// q_stride floats apart, rows of keys and of values kv_stride floats. Heads are side by side.
void attention(const float* queries, long q_stride, const float* keys, const float* values, long kv_stride,
               const Visible& visible, long begin, long n, long heads, long d_k, long d_v, float* out) {
    static thread_local std::vector<float> scores;  // (heads, padded)
    const Floats scale = all(1.0f / std::sqrt((float)d_k));
    for (long i = 0; i < n; i++) {
        long line = visible.row_of_query ? visible.row_of_query[begin + i] : begin + i;
        const int32_t* rows = visible.index + line * visible.width;
        long length = visible.lengths ? visible.lengths[line] : visible.width, padded = (length + LANES - 1) / LANES * LANES;
        scores.resize(heads * padded);
        for (long block = 0; block < length; block += LANES) {
            const float* some[LANES];  // after the last row, the last one again
            for (long t = 0; t < LANES; t++) some[t] = keys + rows[std::min(block + t, length - 1)] * kv_stride;
            for (long h = 0; h < heads; h++)
                store(&scores[h * padded + block], scale * scores_of(queries + i * q_stride + h * d_k, some, h * d_k, d_k));
        }
        for (long h = 0; h < heads; h++) {
            float* row = &scores[h * padded];
            const float share = exponentials(row, length);
            for (long d = 0; d < d_v; d += WIDE) {
                const float* from = values + h * d_v + d;
                float* to = out + (i * heads + h) * d_v + d;
                switch (std::min(WIDE, d_v - d + LANES - 1) / LANES) {
                    case 4: weighted_sum<4>(from, kv_stride, rows, row, length, d_v - d, share, to); break;
                    case 3: weighted_sum<3>(from, kv_stride, rows, row, length, d_v - d, share, to); break;
                    case 2: weighted_sum<2>(from, kv_stride, rows, row, length, d_v - d, share, to); break;
                    default: weighted_sum<1>(from, kv_stride, rows, row, length, d_v - d, share, to);
                }
            }
        }
    }
}

struct Norm {  // layer normalisation; without `weight`, none
    const float *weight, *bias;
    double eps;
};

// Return the m rows of x (m, n) with zero mean and variance 1, times weight, plus bias, in y; or x itself without a norm.
const float* normalised(const float* x, long m, long n, const Norm& norm, float* y) {
    if (!norm.weight) return x;
    for (long row = 0; row < m; row++) {
        const float* from = x + row * n;
        float* to = y + row * n;
        Floats total = zeros(), squares = zeros();
        for (long i = 0; i < n; i += LANES) total = total + load(from + i, n - i, zeros());
        const Floats mean = all(sum(total) / n);
        for (long i = 0; i < n; i += LANES) {
            Floats d = load(from + i, n - i, mean) - mean;
            squares = multiply_add(d, d, squares);
        }
        const Floats scale = all(1.0f / std::sqrt(sum(squares) / n + (float)norm.eps));
        for (long i = 0; i < n; i += LANES) {
            Floats d = (load(from + i, n - i, mean) - mean) * scale;
            d = multiply_add(d, load(norm.weight + i, n - i, zeros()), load(norm.bias + i, n - i, zeros()));
            store(to + i, d, n - i);
        }
    }
    return y;
}

struct Layer {
    Linear project, out, cross_query, cross_out, inner, outer;
    Norm norms[3];  // of self-attention, of cross-attention, and of the feed-forward network
};

struct Stack {  // the layers of an encoder or of a decoder
    const Layer* layers;
    Norm last;
    long n_layers, d_model, d_ff, heads, d_k, d_v, post;
};

struct Rows {  // the n rows of one call
    long n;
    const int32_t* added;        // each layer writes keys and values to these rows (null: 0 to n) of its table (rows, H*K + H*W),
    float* const* tables;        // and attends to the rows `self` of the table,
    const float* const* cross;   // and in a decoder (else null) to the rows `source` of these (rows, H*K + H*W)
    Visible self, source;
};

constexpr long CHUNK = 256;  // rows that pass through the sub-layers together, so that their values stay in the second cache

// Replace x (n, d_model) by the output of the stack.
void through(const Stack& stack, const Rows& rows, float* x) {
    static thread_local std::vector<float> queries, normed, projected, heads, inner;
    long n = rows.n, d = stack.d_model, query = stack.heads * stack.d_k, value = stack.heads * stack.d_v, width = query + value;
    queries.resize(n * query);
    normed.resize(CHUNK * d);
    projected.resize(CHUNK * (query + width));
    heads.resize(CHUNK * value);
    inner.resize(CHUNK * stack.d_ff);
    const Norm none{};
    for (long l = 0; l < stack.n_layers; l++) {
        const Layer& layer = stack.layers[l];
        float* table = rows.tables[l];
        for (long begin = 0; begin < n; begin += CHUNK) {
            long m = std::min(CHUNK, n - begin);
            const float* y = normalised(x + begin * d, m, d, stack.post ? none : layer.norms[0], normed.data());
            product(y, m, layer.project, false, nullptr, projected.data());
            for (long i = 0; i < m; i++) {
                const float* from = &projected[i * (query + width)];
                std::memcpy(&queries[(begin + i) * query], from, query * sizeof(float));
                std::memcpy(table + (rows.added ? rows.added[begin + i] : begin + i) * width, from + query, width * sizeof(float));
            }
        }
        for (long begin = 0; begin < n; begin += CHUNK) {
            long m = std::min(CHUNK, n - begin);
            float* y = x + begin * d;
            auto before = [&](const Norm& norm) { return normalised(y, m, d, stack.post ? none : norm, normed.data()); };
            auto attend = [&](const float* q, const float* table, const Visible& visible) {
                attention(q, query, table, table + query, width, visible, begin, m, stack.heads, stack.d_k, stack.d_v, heads.data());
                return heads.data();
            };
            auto add = [&](const float* from, const Linear& w, const Norm& norm) {
                product(from, m, w, false, y, y);
                normalised(y, m, d, stack.post ? norm : none, y);
            };
            add(attend(&queries[begin * query], table, rows.self), layer.out, layer.norms[0]);
            if (rows.cross) {
                product(before(layer.norms[1]), m, layer.cross_query, false, nullptr, projected.data());
                add(attend(projected.data(), rows.cross[l], rows.source), layer.cross_out, layer.norms[1]);
            }
            product(before(layer.norms[2]), m, layer.inner, true, nullptr, inner.data());
            add(inner.data(), layer.outer, layer.norms[2]);
        }
    }
    normalised(x, n, d, stack.last, x);
}

struct Step {  // what one decoding step adds to its rows
    const float *embedding, *positions;  // (tokens, d_model), (positions, d_model)
    float scale;
    const int64_t *ids, *selected;  // row i is token ids[i] after row selected[i] of the last step (null: i)
    const int32_t *past, *ages;     // (rows of the last step, past_width): the rows of the tables that lead to each, and how many
    long past_width;
    const int32_t* last_source;     // its row_of_query
};

// Decode one more token for each row: write the index and lengths of `self`, the row_of_query of `source`, and the output to x.
void decode(const Stack& stack, const Rows& rows, const Step& step, float* x) {
    long d = stack.d_model;
    const Floats scale = all(step.scale);
    for (long i = 0; i < rows.n; i++) {
        long from = step.selected ? step.selected[i] : i;
        long age = step.ages[from];
        int32_t* index = (int32_t*)rows.self.index + i * rows.self.width;
        std::memcpy(index, step.past + from * step.past_width, age * sizeof(int32_t));
        index[age] = rows.added[i];
        ((int32_t*)rows.self.lengths)[i] = (int32_t)age + 1;
        ((int32_t*)rows.source.row_of_query)[i] = step.last_source[from];
        const float *embedded = step.embedding + step.ids[i] * d, *position = step.positions + age * d;
        for (long j = 0; j < d; j += LANES) {
            Floats y = load(embedded + j, d - j, zeros()) * scale + load(position + j, d - j, zeros());
            store(x + i * d + j, y, d - j);
        }
    }
    through(stack, rows, x);
}

}  // namespace
