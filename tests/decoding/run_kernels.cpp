// Runs kernels of translation as a program, for a processor that an emulator imitates. The sizes are arguments, the inputs
// come from standard input, and the outputs go to standard output, both as the bytes of arrays.

#include "kernels.cpp"

#include <cstdio>
#include <cstdlib>
#include <string>

template <typename Number>
std::vector<Number> read_array(long count) {
    std::vector<Number> values(count);
    if (std::fread(values.data(), sizeof(Number), count, stdin) != (size_t)count) std::exit(2);
    return values;
}

template <typename Number>
void write_array(const std::vector<Number>& values) {
    std::fwrite(values.data(), sizeof(Number), values.size(), stdout);
}

// Multiply x (m, k) by W (n, k) in fp32 or int8, and find the 5 best tokens of each row, without token 1.
void run_linear(long m, long k, long n, bool int8) {
    auto x = read_array<float>(m * k), w = read_array<float>(n * k), bias = read_array<float>(n), residual = read_array<float>(m * n);
    const long panels = (n + panel - 1) / panel, count = 5;
    std::vector<float> packed(panels * panel * (k + inputs)), scales(n), y(m * n), values(m * count);
    std::vector<int32_t> zeros(n);
    std::vector<int64_t> ids(m * count), barred{1};
    if (int8) pack_int8(w.data(), n, k, (int8_t*)packed.data(), scales.data(), zeros.data());
    else pack_fp32(w.data(), n, k, packed.data());
    Linear layer{packed.data(), bias.data(), int8 ? scales.data() : nullptr, zeros.data(), n, k};
    linear(&layer, x.data(), m, true, residual.data(), y.data());
    best_of(&layer, x.data(), m, count, barred.data(), 1, values.data(), ids.data());
    write_array(y), write_array(values), write_array(ids);
}

// Normalise x (m, n).
void run_norm(long m, long n) {
    auto x = read_array<float>(m * n), weight = read_array<float>(n), bias = read_array<float>(n);
    std::vector<float> y(m * n);
    Norm layer{weight.data(), bias.data(), 1e-5};
    norm(x.data(), m, n, &layer, y.data());
    write_array(y);
}

// Attend n queries to the first lengths[i] of 40 rows of keys and values.
void run_attention(long n, long heads, long d_k, long d_v) {
    auto queries = read_array<float>(n * heads * d_k), keys = read_array<float>(40 * heads * d_k), values = read_array<float>(40 * heads * d_v);
    auto index = read_array<int32_t>(n * 40), lengths = read_array<int32_t>(n);
    std::vector<float> out(n * heads * d_v);
    // Keys and values have one stride, so they are columns of one table.
    const long width = heads * (d_k + d_v);
    std::vector<float> table(40 * width);
    for (long i = 0; i < 40; i++) {
        std::copy_n(&keys[i * heads * d_k], heads * d_k, &table[i * width]);
        std::copy_n(&values[i * heads * d_v], heads * d_v, &table[i * width + heads * d_k]);
    }
    attend(queries.data(), heads * d_k, table.data(), table.data() + heads * d_k, width, index.data(), 40, lengths.data(),
           nullptr, n, heads, d_k, d_v, out.data());
    write_array(out);
}

int main(int count, char** arguments) {
    auto size = [&](int i) { return i < count ? std::atol(arguments[i]) : 0; };
    const std::string kernel = arguments[1];
    if (kernel == "fp32" || kernel == "int8") run_linear(size(2), size(3), size(4), kernel == "int8");
    if (kernel == "norm") run_norm(size(2), size(3));
    if (kernel == "attention") run_attention(size(2), size(3), size(4), size(5));
}
