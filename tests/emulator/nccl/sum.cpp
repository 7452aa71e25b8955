#include <cstring>

#include "../device/sixteen_bit.h"
#include "nccl.h"

namespace {

float bfloat_value(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

template <class Bits, class Value, class Round>
void sum_as(const unsigned char* const* addends, int ranks, size_t count, unsigned char* sums, Value value, Round round) {
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int rank = 0; rank < ranks; rank++) {
            Bits bits;
            memcpy(&bits, addends[rank] + i * sizeof bits, sizeof bits);
            sum = rank == 0 ? value(bits) : sum + value(bits);
        }
        const Bits rounded = round(sum);
        memcpy(sums + i * sizeof rounded, &rounded, sizeof rounded);
    }
}

}  // namespace

size_t element_bytes(int type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8: return 1;
        case ncclFloat16:
        case ncclBfloat16: return 2;
        case ncclFloat32: return 4;
        default: return 0;
    }
}

void sum(int type, const unsigned char* const* addends, int ranks, size_t count, unsigned char* sums) {
    switch (type) {
        case ncclFloat32: return sum_as<uint32_t>(addends, ranks, count, sums, __uint_as_float, __float_as_uint);
        case ncclFloat16: return sum_as<uint16_t>(addends, ranks, count, sums, half_value, half_bits);
        case ncclBfloat16: return sum_as<uint16_t>(addends, ranks, count, sums, bfloat_value, bfloat_bits);
    }
}
