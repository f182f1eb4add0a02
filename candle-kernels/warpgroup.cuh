// Products of a warpgroup, which are four neighbouring waves, with wgmma instructions of NVIDIA's Hopper GPUs. Each wave has
// 16 rows of the first operand, in registers or LDS. The second operand is read from LDS, once for all waves. Accumulators and
// registers have the layout of tiles.cuh.
#pragma once
#include "tiles.cuh"

// Defined by the compiler for sm_90a, the target with these instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TILES_BY_WGMMA
template <typename T> constexpr bool BY_WARPGROUPS = sizeof(T) == 2;
#else
template <typename T> constexpr bool BY_WARPGROUPS = false;
#endif

// Threads of a warpgroup, rows of the first operand, and columns that it multiplies at a time.
constexpr unsigned int WARPGROUP = 128, WARPGROUP_ROWS = 64, WARPGROUP_COLUMNS = 64;
// Bytes of a line of an operand in LDS, and of eight lines, within which its granules of 16 bytes are swizzled.
constexpr unsigned int PANEL_BYTES = 128, PANEL_ROWS = 8;

#if defined(TILES_BY_WGMMA)
// Returns the position of operands in LDS, in units of wgmma. It is computed anew for each tile, because the compiler
// would keep the descriptors of all operands in registers.
__device__ __forceinline__ unsigned int operand_position(const void *in_lds) {
    return __shfl_sync(~0u, opaque(shared_address(in_lds) >> 4), 0);
}
// Describes the operand `offset` bytes behind a position for wgmma: where it is, the distance of groups of eight lines, and
// the 128-byte swizzle.
__device__ __forceinline__ uint64_t operand_descriptor(unsigned int position, unsigned int offset) {
    constexpr unsigned int DISTANCE = PANEL_BYTES * PANEL_ROWS / 16, SWIZZLE = 1 << 30;
    return (uint64_t)(SWIZZLE | DISTANCE) << 32 | (DISTANCE << 16) + (offset >> 4) + position;
}

// Keeps the compiler from moving uses of accumulators to a place between asynchronous products.
template <unsigned int COUNT>
__device__ __forceinline__ void hold(Tile<float, false> (&tiles)[COUNT]) {
#pragma unroll
    for (unsigned int i = 0; i < COUNT * 8; ++i) {
        asm volatile("" : "+f"(tiles[i / 8].values[i / 4 % 2][i % 4])::"memory");
    }
}
template <unsigned int COUNT>
__device__ __forceinline__ void start_products(Tile<float, false> (&sums)[COUNT]) {
    hold(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <unsigned int COUNT>
__device__ __forceinline__ void finish_products(Tile<float, false> (&sums)[COUNT]) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(sums);
}
// Makes the thread's earlier writes to LDS visible to products after the next barrier.
__device__ __forceinline__ void publish_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define SUMS_1(C)                                                                                                        \
    "+f"((C).values[0][0]), "+f"((C).values[0][1]), "+f"((C).values[1][0]), "+f"((C).values[1][1]),                      \
        "+f"((C).values[0][2]), "+f"((C).values[0][3]), "+f"((C).values[1][2]), "+f"((C).values[1][3])
#define SUMS_2(C) SUMS_1((C)[0]), SUMS_1((C)[1])
#define SUMS_3(C) SUMS_2(C), SUMS_1((C)[2])
#define SUMS_4(C) SUMS_3(C), SUMS_1((C)[3])
#define NAMES_2 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_3 NAMES_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_4 NAMES_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
// ADD is a number; if it is 0, the products replace the sums.
#define WGMMA(COUNT, COLUMNS, PTX, A, B_AND_LAYOUTS, ADD, ...)                                                           \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n"                                                   \
                 "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." PTX "." PTX " {" NAMES_##COUNT "}, " A ", "        \
                 B_AND_LAYOUTS ";\n}"                                                                                    \
                 : SUMS_##COUNT(c)                                                                                       \
                 : __VA_ARGS__)
#define WGMMA_OF_REGISTERS(COUNT, COLUMNS, PTX, A, B) \
    WGMMA(COUNT, COLUMNS, PTX, A, B ", add, 1, 1, 1", "1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define MULTIPLY_BY_WARPGROUP(T, PTX)                                                                                    \
    /* Multiplies rows and 64 columns in LDS, both with consecutive k side by side. */                                   \
    __device__ __forceinline__ void multiply_by_warpgroup(Tile<float, false> *c, uint64_t a, uint64_t b, bool add, T) {  \
        WGMMA(4, "64", PTX, "%32", "%33, add, 1, 1, 0, 0", "%34", "l"(a), "l"(b), "r"((int)add));                        \
    }                                                                                                                    \
    /* Adds the products of rows in registers and COUNT tiles of columns, which are side by side in LDS. */              \
    template <unsigned int COUNT>                                                                                        \
    __device__ __forceinline__ void multiply_by_warpgroup(Tile<float, false> *c, Words4 a, uint64_t b, T) {              \
        static_assert(COUNT >= 2 && COUNT <= 4, "there are instructions for 32, 48 and 64 columns");                     \
        if constexpr (COUNT == 2) {                                                                                      \
            WGMMA_OF_REGISTERS(2, "32", PTX, "{%16, %17, %18, %19}", "%20");                                             \
        } else if constexpr (COUNT == 3) {                                                                               \
            WGMMA_OF_REGISTERS(3, "48", PTX, "{%24, %25, %26, %27}", "%28");                                             \
        } else {                                                                                                         \
            WGMMA_OF_REGISTERS(4, "64", PTX, "{%32, %33, %34, %35}", "%36");                                             \
        }                                                                                                                \
    }
MULTIPLY_BY_WARPGROUP(__half, "f16")
MULTIPLY_BY_WARPGROUP(__nv_bfloat16, "bf16")
#endif
