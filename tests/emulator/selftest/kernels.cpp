// Tests of the emulator alone: correct kernels give correct results, and wrong ones are detected. Run in several thread
// orders (EMULATED_ORDER). With an argument, launches only that wrong kernel, for a sanitizer to detect.
#include <algorithm>
#include <cmath>
#include <vector>

#include "expect.h"
#include "kernels.cu"

namespace {

// Launches a kernel with the given arguments, and returns the emulator's error message.
template <class... A>
std::string launch(const char* name, unsigned grid, unsigned block, size_t shared_bytes, A... arguments) {
    void* pointers[] = {&arguments...};
    return emulator::launch(emulator::kernels().at(name), dim3(grid), dim3(block), shared_bytes, pointers);
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

int order() { return Way::of_environment().order; }

// Small integers, so that sums are exact in every type and order.
template <class T>
std::vector<T> integers(size_t count, int step) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; i++) {
        values[i] = from_float<T>(static_cast<float>(static_cast<int>(i * step % 13) - 6));
    }
    return values;
}

void sums_rows() {
    const int rows = 50, n = 300;
    const auto x = integers<float>(rows * n, 5);
    std::vector<float> y(rows);
    EXPECT(launch("row_sums", rows, 96, 0, y.data(), x.data(), n).empty());
    for (int row = 0; row < rows; row++) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += x[row * n + i];
        EXPECT_EQUAL(y[row], sum);
    }
}

void shuffles_and_votes() {
    std::vector<int> out(32 * 16, -1);
    EXPECT(launch("warp_operations", 1, 32, 0, out.data()).empty());
    for (int lane = 0; lane < 32; lane++) {
        const int* row = &out[16 * lane];
        EXPECT_EQUAL(row[0], 5);
        EXPECT_EQUAL(row[1], lane / 8 * 8 + 3);
        EXPECT_EQUAL(row[2], lane < 2 ? lane : lane - 2);
        EXPECT_EQUAL(row[3], lane > 29 ? lane : lane + 2);
        EXPECT_EQUAL(row[4], lane % 8 > 4 ? lane : lane + 3);
        EXPECT_EQUAL(row[5], lane ^ 9);
        EXPECT_EQUAL(static_cast<unsigned>(row[6]), 0x49249249u);
        EXPECT_EQUAL(row[7], 1);
        EXPECT_EQUAL(row[8], 0);
        EXPECT_EQUAL(static_cast<unsigned>(row[9]), 0xfu << (lane / 4 * 4));
        EXPECT_EQUAL(row[10], 31);
        EXPECT_EQUAL(row[11], lane < 16 ? lane ^ 1 : lane ^ 2);
    }
}

void counts_atomically() {
    unsigned counts[2] = {};
    float sum = 0;
    EXPECT(launch("atomics", 40, 64, 0, &counts[0], &sum).empty());
    EXPECT_EQUAL(counts[0], 40u * 64);
    EXPECT_EQUAL(counts[1], 39u);
    EXPECT_EQUAL(sum, 40 * 64 * 0.5f);
}

template <class T>
void multiplies(const char* kernel, int inner) {
    const auto a = integers<T>(16 * inner, 5), b = integers<T>(inner * 8, 7);
    std::vector<float> d(16 * 8);
    EXPECT(launch(kernel, 1, 32, 0, d.data(), a.data(), b.data()).empty());
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            float sum = 0;
            for (int k = 0; k < inner; k++) sum += to_float(a[row * inner + k]) * to_float(b[k * 8 + column]);
            EXPECT_EQUAL(d[row * 8 + column], sum);
        }
    }
}

// One sum as tensor cores compute it, in double precision, where everything but the truncation is exact.
float truncated_sum(float sum, const float* products, int count) {
    float largest = std::fabs(sum);
    for (int i = 0; i < count; i++) largest = std::max(largest, std::fabs(products[i]));
    if (largest == 0 || !std::isfinite(largest)) {
        for (int i = 0; i < count; i++) sum += products[i];
        return sum;
    }
    const double unit = std::ldexp(1.0, std::ilogb(largest) - 24);
    double exact = std::trunc(sum / unit);
    for (int i = 0; i < count; i++) exact += std::trunc(products[i] / unit);
    exact *= unit;
    const float nearest = static_cast<float>(exact);
    return std::fabs(nearest) > std::fabs(exact) ? std::nextafter(nearest, 0.0f) : nearest;
}

// Random bits, and numbers with nearby exponents, at either end of the range or between: with infinities, zeros of both
// signs, and addends that cancel.
void truncates_sums() {
    emulator::Chance chance;
    const auto number = [&](int kind, uint32_t exponent) {
        const uint32_t fraction = chance.below(1 << 24), sign = fraction << 31, far = chance.below(60);
        const uint32_t near = std::max(exponent + chance.below(5), 4u) - 4;
        switch (kind) {
            case 0: return __uint_as_float(chance.below(~0u));
            case 1: return __uint_as_float(sign | near << 23 | fraction >> 1);
            case 2: return __uint_as_float(sign | (near + far < 254 ? near + far : 254) << 23 | fraction >> 1);
            case 3: return __uint_as_float(sign | fraction >> 1);
            case 4: return __uint_as_float(sign | exponent << 23);
            case 5: return __uint_as_float(sign | chance.below(8) / 7);
            case 6: return __uint_as_float(sign | (chance.below(9) == 0 ? 255u << 23 : near << 23 | fraction >> 1));
            default: return __uint_as_float(sign | (250 + chance.below(5)) << 23 | fraction >> 1);
        }
    };
    for (int round = 0; round < 20000; round++) {
        const int count = round % 4 == 0 ? 1 + static_cast<int>(chance.below(8)) : PRODUCTS_AT_ONCE;
        float began[LANES], sums[LANES], products[PRODUCTS_AT_ONCE][LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const int kind = (round + lane) % 9;
            const uint32_t exponent = chance.below(255);
            const auto next = [&] { return number(kind < 8 ? kind : static_cast<int>(chance.below(8)), exponent); };
            began[lane] = next();
            for (int k = 0; k < count; k++) products[k][lane] = next();
            if (chance.below(8) == 0) products[0][lane] = -began[lane];
            if (chance.below(8) == 0 && count > 2) products[2][lane] = -products[1][lane];
        }
        memcpy(sums, began, sizeof sums);
        add_truncated(sums, products, count);
        for (int lane = 0; lane < LANES; lane++) {
            float of_lane[PRODUCTS_AT_ONCE];
            for (int k = 0; k < count; k++) of_lane[k] = products[k][lane];
            const float expected = truncated_sum(began[lane], of_lane, count);
            EXPECT(__float_as_uint(sums[lane]) == __float_as_uint(expected) ||
                   (isnan(sums[lane]) && isnan(expected)));
        }
    }
}

void loads_matrices() {
    std::vector<uint32_t> out(32 * 16);
    EXPECT(launch("matrix_loads", 1, 32, 32 * 16, out.data()).empty());
    // Each number encodes its position: row 8 * matrix + r, column c of the tile.
    const auto pair = [](int low, int high) { return static_cast<uint32_t>(low | high << 16); };
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t* row = &out[16 * lane];
        const int major = lane / 4, minor = 2 * (lane % 4);
        const int first_of[] = {0, 1, 3}, matrices_of[] = {1, 2, 4};
        for (int kind = 0; kind < 3; kind++) {
            for (int matrix = 0; matrix < matrices_of[kind]; matrix++) {
                const int base = 64 * matrix;
                EXPECT_EQUAL(row[first_of[kind] + matrix],
                             pair(base + 8 * major + minor, base + 8 * major + minor + 1));
                EXPECT_EQUAL(row[7 + first_of[kind] + matrix],
                             pair(base + 8 * minor + major, base + 8 * (minor + 1) + major));
            }
        }
    }
}

void converts_sixteen_bits() {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float f = half_value(bits), b = bfloat_value(bits);
        if (!isnan(f)) EXPECT_EQUAL(half_bits(f), bits);
        if (!isnan(b)) EXPECT_EQUAL(bfloat_bits(b), bits);
    }
    // Ties to even, overflow, subnormals, the smallest number, and underflow.
    EXPECT_EQUAL(half_bits(1.0f + 0x1p-11f), 0x3c00);
    EXPECT_EQUAL(half_bits(1.0f + 3 * 0x1p-11f), 0x3c02);
    EXPECT_EQUAL(half_bits(65519.996f), 0x7bff);
    EXPECT_EQUAL(half_bits(65520.0f), 0x7c00);
    EXPECT_EQUAL(half_bits(-1e9f), 0xfc00);
    EXPECT_EQUAL(half_bits(0x1p-24f), 1);
    EXPECT_EQUAL(half_bits(0x1p-25f), 0);
    EXPECT_EQUAL(half_bits(0x1.8p-25f), 1);
    EXPECT_EQUAL(half_bits(0x1.ff8p-15f), 0x3ff);
    EXPECT_EQUAL(half_bits(0x1.ffcp-15f), 0x400);
    EXPECT_EQUAL(bfloat_bits(1.0f + 0x1p-8f), 0x3f80);
    EXPECT_EQUAL(bfloat_bits(1.0f + 3 * 0x1p-8f), 0x3f82);
    EXPECT_EQUAL(bfloat_bits(3.4e38f), 0x7f80);
    EXPECT(isnan(half_value(half_bits(NAN))) && isnan(bfloat_value(bfloat_bits(NAN))));
    EXPECT_EQUAL(pack<f16>(1.0f, 2.0f), 0x40003c00u);
    EXPECT_EQUAL(pack<bf16>(1.0f, 2.0f), 0x40003f80u);
}

void knows_half_turns() {
    for (int i = -40; i <= 40; i++) {
        double sine, cosine;
        sincospi(i / 8.0, &sine, &cosine);
        EXPECT(fabs(sine - sin(M_PI * i / 8)) < 1e-14 && fabs(cosine - cos(M_PI * i / 8)) < 1e-14);
        if (i % 8 == 0) EXPECT(sine == 0 && fabs(cosine) == 1);
    }
}

void notices_a_missing_barrier() {
    const auto x = integers<float>(256, 5);
    std::vector<float> y(256);
    EXPECT(launch("lacks_barrier", 1, 256, 0, y.data(), x.data()).empty());
    bool right = true;
    for (int i = 0; i < 256; i++) right = right && y[i] == x[255 - i];
    EXPECT(!right);
}

void notices_divergence() {
    std::vector<float> y(32);
    EXPECT(contains(launch("diverges_at_barrier", 1, 32, 0, y.data()), "divergent __syncthreads"));
    EXPECT(contains(launch("diverges_at_shuffle", 1, 32, 0, y.data()), "deadlock"));
    EXPECT(launch("reads_absent_lane", 1, 32, 0, y.data()).empty());
    EXPECT(isnan(y[0]) && y[31] == 0);
    // An error does not affect the next launch.
    sums_rows();
}

void notices_unset_shared_memory() {
    std::vector<float> y(64);
    EXPECT(launch("reads_unset_dynamic_shared", 1, 32, 32 * 4, y.data()).empty());
    EXPECT(y[0] == 1 && isnan(y[31]));
    EXPECT(launch("reads_unset_static_shared", 2, 32, 0, y.data()).empty());
    EXPECT(y[31] == 1 && y[32] == 1 && isnan(y[63]));
}

void notices_misplaced_copies() {
    const auto x = integers<float>(256, 5);
    std::vector<float> y(64);
    EXPECT(launch("lacks_copy_wait", 1, 32, 0, y.data(), x.data()).empty());
    if (order() == 0) EXPECT(isnan(y[0]));
    EXPECT(launch("copies_too_early", 1, 32, 0, y.data(), x.data()).empty());
    bool right = true;
    for (int i = 0; i < 32; i++) right = right && y[i] == x[127 - i];
    if (order() == 1) EXPECT(!right);
    EXPECT(
        contains(launch("loads_matrix_from_global", 1, 32, 0, y.data(), x.data()), "not in shared memory"));
}

int run_wrong_kernel(const std::string& name) {
    std::vector<float> x(100, 1.0f), y(100);
    if (name == "runs_out_of_bounds") {
        launch("runs_out_of_bounds", 1, 128, 0, y.data(), x.data(), 100);
    } else if (name == "loads_misaligned_vector") {
        launch("loads_misaligned_vector", 1, 1, 0, y.data(), x.data());
    } else if (name == "reads_unset_dynamic_shared") {
        launch("reads_unset_dynamic_shared", 1, 32, 31 * 4, y.data());  // one float too small
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count > 1) return run_wrong_kernel(arguments[1]);
    sums_rows();
    shuffles_and_votes();
    counts_atomically();
    multiplies<bf16>("multiply_bf16", 16);
    multiplies<f16>("multiply_f16", 16);
    multiplies<float>("multiply_tf32", 8);
    truncates_sums();
    loads_matrices();
    converts_sixteen_bits();
    knows_half_turns();
    notices_a_missing_barrier();
    notices_divergence();
    notices_unset_shared_memory();
    notices_misplaced_copies();
    return finish("kernels");
}
