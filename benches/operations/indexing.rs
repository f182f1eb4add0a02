//! Indexing, sorting, cumulative sums and random numbers.
use crate::case::{Cases, FLOATS, M, Work, below, count_name, dims_name, random};
use candle_core::{DType, Device, Result, Tensor};
use std::hint::black_box;

const INDEXING: &str = "indexing";
const SORT: &str = "sort";
const RANDOM: &str = "random";

/// Shape of an embedding table, and numbers of selected rows.
const VOCABULARY: [usize; 2] = [32000, 4096];
const SELECTED: [usize; 2] = [2048, 1];

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        indexing(cases, dtype);
        for dims in [[1024, 1024], [64, 8192]] {
            let dims = cases.scale.dims(dims);
            cases.operation([SORT, "arg_sort"], dtype, dims_name(&dims), [random(dtype, dims)], |[x]| {
                x.arg_sort_last_dim(true)
            });
        }
        let dims = cases.scale.dims([1024, 1024]);
        cases
            .operation([SORT, "cumsum"], dtype, dims_name(&dims), [random(dtype, dims)], |[x]| x.cumsum(1))
            .bytes(2 * dims[0] * dims[1] * dtype.size_in_bytes());
    }
    let n = cases.scale.dim(64 * M);
    type Draw = fn(usize, &Device) -> Result<Tensor>;
    let draws: [(&str, Draw); 2] = [
        ("rand_uniform", |n, device| Tensor::rand(0f32, 1f32, n, device)),
        ("rand_normal", |n, device| Tensor::randn(0f32, 1f32, n, device)),
    ];
    for (name, draw) in draws {
        let case = cases.work([RANDOM, name], "f32", count_name(n), move |device| {
            let device = device.clone();
            let work: Work = Box::new(move || draw(n, &device).map(|result| drop(black_box(result))));
            Ok(work)
        });
        case.bytes(4 * n).elements = n;
    }
}

fn indexing(cases: &mut Cases, dtype: DType) {
    let size = dtype.size_in_bytes();
    let [rows, width] = cases.scale.dims(VOCABULARY);
    for (name, index) in [("index_select", DType::U32), ("index_select_i64", DType::I64)] {
        for selected in SELECTED.map(|n| cases.scale.dim(n)) {
            // The dtype of the index makes no difference for one row.
            if selected == 1 && index == DType::I64 {
                continue;
            }
            let operands = [random(dtype, [rows, width]), below(rows, index, [selected])];
            let case = cases.operation(
                [INDEXING, name],
                dtype,
                format!("{rows}x{width}[{selected}]"),
                operands,
                |[x, ids]| x.index_select(ids, 0),
            );
            if selected > 1 {
                case.bytes(2 * selected * width * size);
            }
        }
    }
    let n = cases.scale.dim(4096);
    let shape = format!("{n}x{n} dim1");
    for (name, index) in [("gather", DType::U32), ("gather_i64", DType::I64)] {
        let operands = [random(dtype, [n, n]), below(n, index, [n, n])];
        cases
            .operation([INDEXING, name], dtype, &shape, operands, |[x, ids]| x.gather(ids, 1))
            .bytes(n * n * (2 * size + index.size_in_bytes()));
    }
    let added = cases.scale.dim(2048);
    let operands = [random(dtype, [n, n]), below(n, DType::U32, [added]), random(dtype, [added, n])];
    cases
        .operation(
            [INDEXING, "index_add"],
            dtype,
            format!("{n}x{n}[{added}]"),
            operands,
            |[x, ids, added]| x.index_add(ids, added, 0),
        )
        .bytes((2 * n * n + 2 * added * n) * size);
    let operands = [random(dtype, [n, n]), below(n, DType::U32, [n, n]), random(dtype, [n, n])];
    let dims = cases.scale.dims([511, 2047]);
    let long = || [random(dtype, dims), below(dims[0], DType::U32, dims), random(dtype, dims)];
    let shape_of_long = format!("{} dim0", dims_name(&dims));
    let bytes = dims[0] * dims[1] * (3 * size + 4);
    cases
        .operation([INDEXING, "scatter"], dtype, &shape_of_long, long(), |[x, ids, set]| {
            x.scatter(ids, set, 0)
        })
        .bytes(bytes);
    cases
        .operation([INDEXING, "scatter_add"], dtype, &shape_of_long, long(), |[x, ids, added]| {
            x.scatter_add(ids, added, 0)
        })
        .bytes(bytes);
    cases
        .operation([INDEXING, "scatter_add"], dtype, shape, operands, |[x, ids, added]| {
            x.scatter_add(ids, added, 1)
        })
        .bytes(n * n * (3 * size + 4));
}
