//! Compares products of a few rows with dense columns, and f64 products, with sums in f64, on the software GPU of every
//! architecture that was built.
mod software_gpu;

use half::{bf16, f16};
use hip_kernels::contract::{BLOCK, PACK_BYTES, PRODUCT_TILE, Product, ProductKind, THIN_SIDE, TiledProduct};
use software_gpu::numbers::{Dtype, Numbers, launch, on_each_device};
use software_gpu::products::{self, Strides, arguments};

/// Returns arguments with the number of threads that share a column.
fn with_width(of: TiledProduct, width: u32) -> Product {
    let TiledProduct { a, b, c, m, n, k, batches, a_row, a_column, a_batch, .. } = of;
    let TiledProduct { b_row, b_column, b_batch, c_row, c_batch, .. } = of;
    #[rustfmt::skip]
    return Product {
        a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, c_batch, width,
    };
}

/// Checks a product of `(batches, m, k)` with one `(k, n)` for all batches, into rows with gaps.
fn check<T: Dtype>(
    arch: &str,
    kind: ProductKind,
    sizes: [usize; 4],
    operands: &Strides,
    (grid, block): ([u32; 3], [u32; 3]),
    width: u32,
) {
    let [batches, m, n, k] = sizes;
    let ([a_batch, a_row, a_column], [b_row, b_column]) = (operands.a, operands.b);
    let last = |size: usize, stride: usize| size.saturating_sub(1) * stride;
    let a_len = last(batches, a_batch) + last(m, a_row) + last(k, a_column) + 1;
    let b_len = last(k, b_row) + last(n, b_column) + 1;
    products::check::<T>(
        sizes,
        operands,
        [a_len, b_len, 3],
        |of| launch(Product::kernel(kind, T::ELEMENT), &with_width(of, width), arch, grid, block),
        // Tolerance: one rounding of the result, and the sum in f32.
        |wanted| T::EPSILON * (1.0 + wanted.abs()) + f64::from(f32::EPSILON) * k as f64,
        &format!("{kind:?} {sizes:?} on {arch}"),
    );
}

/// The left operand is stored by columns, the right one by rows.
#[test]
fn plain_products() {
    on_each_device(|arch| {
        let plain = |[batches, m, n, k]: [usize; 4], grid| {
            let operands = Strides { a: [m * k, 1, m], b: [n, 1] };
            let block = [PRODUCT_TILE as u32, PRODUCT_TILE as u32, 1];
            check::<f64>(arch, ProductKind::Product, [batches, m, n, k], &operands, (grid, block), 0);
        };
        plain([3, 17, 33, 20], [3, 2, 3]);
        plain([1, 16, 16, 16], [1, 1, 1]);
        // Fewer workgroups than tiles of rows and batches, so each computes several.
        plain([5, 50, 20, 9], [2, 2, 2]);
        // The result of an empty sum is 0.
        plain([1, 4, 4, 0], [1, 1, 1]);
    });
}

/// Strides with dense rows of the left and dense columns of the right operand.
fn along(m: usize, k: usize) -> Strides {
    Strides { a: [m * k, k, 1], b: [1, k] }
}

/// A column is shared by a part of a wave, a wave, or several waves; some workgroups have unused threads.
#[test]
fn products_of_one_and_few_rows() {
    const THREADS: [u32; 3] = [BLOCK as u32, 1, 1];
    on_each_device(|arch| {
        for width in [1, 8, 32, 64, 256] {
            let columns = BLOCK as u32 / width;
            let grid = |n: usize, batches: u32| ([(n as u32).div_ceil(columns), 1, batches], THREADS);
            check::<f32>(arch, ProductKind::Row, [1, 1, 37, 64], &along(1, 64), grid(37, 1), width);
            check::<f16>(arch, ProductKind::Rows, [2, 3, 37, 264], &along(3, 264), grid(37, 2), width);
            // Fewer workgroups than batches, so each computes several.
            check::<bf16>(arch, ProductKind::Rows, [3, 4, 5, 72], &along(4, 72), grid(5, 2), width);
        }
    });
}

fn check_thin<T: Dtype>(arch: &str) {
    let pack = PACK_BYTES / size_of::<T::Bits>();
    let thin = |[batches, m, n, packs]: [usize; 4], operands: &Strides, z, threads| {
        let shape = ([n.div_ceil(THIN_SIDE) as u32, 1, z], [threads, 1, 1]);
        check::<T>(arch, ProductKind::Thin, [batches, m, n, packs * pack], operands, shape, 0);
    };
    for (m, n, packs) in
        // One pack; the depth of one product plus a pack; several iterations of each wave, complete and incomplete.
        [(16, 16, 1), (5, 33, 9), (9, 17, 64), (16, 40, 200), (7, 1, 257), (1, 5, 31)]
    {
        thin([1, m, n, packs], &along(m, packs * pack), 1, BLOCK as u32);
    }
    // Fewer waves, rows and columns with gaps, and fewer workgroups than batches.
    let k = 23 * pack;
    let apart = Strides { a: [11 * (k + pack) + pack, k + pack, 1], b: [1, k + 2 * pack] };
    thin([3, 11, 20, 23], &apart, 2, 64);
}

#[test]
fn thin_products() {
    on_each_device(|arch| {
        check_thin::<f16>(arch);
        check_thin::<bf16>(arch);
        check_thin::<f32>(arch);
    });
}

/// Memory after the end of a line does not affect products, even if it contains NaN.
#[test]
fn memory_after_a_line_is_ignored() {
    on_each_device(|arch| {
        let (m, n, k, pitch) = (6, 3, 8, 512);
        let lines = |lines: usize| {
            let of = |i: usize| if i % pitch < k { 1.0 } else { f64::NAN };
            Numbers::<f16>::new(&(0..lines * pitch).map(of).collect::<Vec<_>>())
        };
        let (a, b, c) = (lines(m), lines(n), Numbers::<f16>::new(&vec![0.0; m * n]));
        let strides = Strides { a: [0, pitch, 1], b: [1, pitch] };
        let product = arguments([&a, &b, &c].map(Numbers::pointer), [1, m, n, k], &strides, n);
        let kernel = Product::kernel(ProductKind::Thin, f16::ELEMENT);
        launch(kernel, &with_width(product, 0), arch, [1, 1, 1], [BLOCK as u32, 1, 1]);
        assert_eq!(c.read(), vec![k as f64; m * n], "{arch}");
    });
}
