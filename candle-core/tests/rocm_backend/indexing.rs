use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor};

/// Index dtypes that the CPU device supports: for moving elements, and for adding them.
const MOVING_IDS: [DType; 3] = [DType::U8, DType::U32, DType::I64];
const ADDING_IDS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

#[test]
fn index_select_along_every_dim() {
    let device = rocm();
    for ids_dtype in MOVING_IDS {
        let ids = from_f64(&[1.0, 0.0, 1.0, 1.0], &[4], ids_dtype);
        let gpu_ids = ids.to_device(&device).unwrap();
        for dtype in ALL {
            let cpu = tensor(&DIMS, dtype, 60.0);
            let gpu = cpu.to_device(&device).unwrap();
            for dim in 0..3 {
                let expected = cpu.index_select(&ids, dim).unwrap();
                let got = gpu.index_select(&gpu_ids, dim).unwrap();
                assert_close(
                    &got,
                    &expected,
                    0.0,
                    &format!("index_select {dtype:?} {ids_dtype:?} dim {dim}"),
                );
            }
        }
    }
}

#[test]
fn index_select_from_a_view_with_strided_ids() {
    let device = rocm();
    let cpu = tensor(&[6, 4], DType::F32, 9.0);
    let gpu = cpu.to_device(&device).unwrap();
    let ids = Tensor::new(&[[3u32, 0], [1, 0], [2, 0]], &device).unwrap();
    // The first column of the ids, and rows 1.. of the source.
    let column = ids.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    let got = gpu.narrow(0, 1, 5).unwrap().index_select(&column, 0).unwrap();
    let expected =
        cpu.narrow(0, 1, 5).unwrap().index_select(&Tensor::new(&[3u32, 1, 2], &Device::Cpu).unwrap(), 0);
    assert_close(&got, &expected.unwrap(), 0.0, "strided ids");
}

/// Returns ids that include the largest value of their dtype.
fn largest(ids: DType) -> Tensor {
    let cpu = &Device::Cpu;
    match ids {
        DType::U8 => Tensor::new(&[0u8, u8::MAX, 2], cpu),
        DType::U32 => Tensor::new(&[0u32, u32::MAX, 2], cpu),
        DType::I16 => Tensor::new(&[0i16, i16::MAX, 2], cpu),
        DType::I32 => Tensor::new(&[0i32, i32::MAX, 2], cpu),
        _ => Tensor::new(&[0i64, i64::MAX, 2], cpu),
    }
    .unwrap()
}

#[test]
fn the_largest_index_is_ignored() {
    let device = rocm();
    // There are 256 rows, so that the largest u8 would be a valid index.
    let (base, src) = (tensor(&[256, 2], DType::F32, 9.0), tensor(&[3, 2], DType::F32, 5.0));
    let (gpu_base, gpu_src) = (base.to_device(&device).unwrap(), src.to_device(&device).unwrap());
    for ids_dtype in ADDING_IDS {
        let ids = largest(ids_dtype);
        // Both columns have the same id.
        let wide = Tensor::stack(&[&ids, &ids], 1).unwrap();
        let (gpu_ids, gpu_wide) = (ids.to_device(&device).unwrap(), wide.to_device(&device).unwrap());
        type Op = fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Result<Tensor>;
        let adding: [(&str, Op); 2] = [
            ("scatter_add", |base, _, wide, src| base.scatter_add(wide, src, 0)),
            ("index_add", |base, ids, _, src| base.index_add(ids, src, 0)),
        ];
        let moving: [(&str, Op); 3] = [
            ("index_select", |base, ids, _, _| base.index_select(ids, 0)),
            ("gather", |base, _, wide, _| base.gather(wide, 0)),
            ("scatter", |base, _, wide, src| base.scatter(wide, src, 0)),
        ];
        let moving = moving.into_iter().filter(|_| MOVING_IDS.contains(&ids_dtype));
        for (name, op) in adding.into_iter().chain(moving) {
            let expected = op(&base, &ids, &wide, &src).unwrap();
            let got = op(&gpu_base, &gpu_ids, &gpu_wide, &gpu_src).unwrap();
            assert_close(&got, &expected, 0.0, &format!("{name} {ids_dtype:?}"));
        }
    }
}

#[test]
fn unsupported_index_dtypes_give_the_errors_of_the_cpu() {
    let device = rocm();
    let (t, g) =
        (tensor(&[3, 2], DType::F32, 9.0), tensor(&[3, 2], DType::F32, 9.0).to_device(&device).unwrap());
    type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 5] = [
        ("index_select", |t, ids| t.index_select(&ids.get_on_dim(1, 0)?.contiguous()?, 0)),
        ("gather", |t, ids| t.gather(ids, 0)),
        ("scatter", |t, ids| t.scatter(ids, &t.affine(2.0, 0.0)?, 0)),
        ("scatter_add", |t, ids| t.scatter_add(ids, &t.affine(2.0, 0.0)?, 0)),
        ("index_add", |t, ids| t.index_add(&ids.get_on_dim(1, 0)?.contiguous()?, t, 0)),
    ];
    for ids_dtype in ALL {
        let ids = from_f64(&[0.0, 1.0, 2.0, 0.0, 1.0, 2.0], &[3, 2], ids_dtype);
        let gpu_ids = ids.to_device(&device).unwrap();
        for (name, op) in ops {
            let what = format!("{name} {ids_dtype:?}");
            match op(&t, &ids) {
                Ok(expected) => assert_close(&op(&g, &gpu_ids).unwrap(), &expected, 0.0, &what),
                refused => assert_same_error(op(&g, &gpu_ids), refused, &what),
            }
        }
    }
}

#[test]
fn gather_along_every_dim() {
    let device = rocm();
    for ids_dtype in MOVING_IDS {
        for dtype in ALL {
            let cpu = tensor(&DIMS, dtype, 60.0);
            let gpu = cpu.to_device(&device).unwrap();
            for (dim, size) in DIMS.into_iter().enumerate() {
                let values: Vec<f64> = (0..40).map(|i| ((i * 3) % size) as f64).collect();
                let ids = from_f64(&values, &DIMS, ids_dtype);
                let expected = cpu.gather(&ids, dim).unwrap();
                let got = gpu.gather(&ids.to_device(&device).unwrap(), dim).unwrap();
                assert_close(&got, &expected, 0.0, &format!("gather {dtype:?} {ids_dtype:?} dim {dim}"));
            }
        }
    }
}

/// There are fewer ids than elements in the other dims.
#[test]
fn gather_of_a_part() {
    let device = rocm();
    let cpu = tensor(&[3, 4, 5], DType::F32, 60.0);
    let gpu = cpu.to_device(&device).unwrap();
    for (dims, dim) in
        [([2, 4, 5], 1), ([3, 4, 3], 1), ([3, 2, 5], 2), ([7, 2, 3], 0), ([2, 2, 9], 2), ([1, 1, 1], 1)]
    {
        let count: usize = dims.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i * 2 % [3, 4, 5][dim]) as f64).collect();
        let ids = from_f64(&values, &dims, DType::U32);
        let expected = cpu.gather(&ids, dim).unwrap();
        let got = gpu.gather(&ids.to_device(&device).unwrap(), dim).unwrap();
        assert_close(&got, &expected, 0.0, &format!("{dims:?} along {dim}"));
    }
}

/// Asserts that deterministic results are bitwise equal.
fn assert_deterministic(got: impl Fn() -> Tensor, expected: &Tensor, what: &str) {
    // The setting is process-wide.
    static SETTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _own = SETTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    candle_core::rocm::set_deterministic(true);
    let got = got();
    candle_core::rocm::set_deterministic(false);
    assert_close(&got, expected, 0.0, &format!("{what} in order"));
}

/// Asserts that sums are equal, except for the roundings of up to seven floats added in any order. With a fixed order, they
/// must be bitwise equal.
fn assert_added(got: impl Fn() -> Tensor, expected: &Tensor, what: &str) {
    assert_deterministic(&got, expected, what);
    let dtype = expected.dtype();
    let (got, expected) = (to_f64(&got()), to_f64(expected));
    let unit = match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F8E4M3 => 2f64.powi(-4),
        _ => 0.0,
    };
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        assert!(
            (g - e).abs() <= 2.0 * 7.0 * unit * (60.0 + 7.0 * 7.0),
            "{what}: element {i} is {g}, not {e}"
        );
    }
}

/// Indices occur once or several times; the last element that is set wins.
#[test]
fn scatter_sets_and_adds() {
    let device = rocm();
    for ids_dtype in ADDING_IDS {
        for dtype in ALL {
            let (base, src) = (tensor(&DIMS, dtype, 60.0), tensor(&DIMS, dtype, 7.0));
            let (gpu_base, gpu_src) = (base.to_device(&device).unwrap(), src.to_device(&device).unwrap());
            for (dim, size) in DIMS.into_iter().enumerate() {
                let values: Vec<f64> = (0..40).map(|i| (i * i % 7 % size) as f64).collect();
                let ids = from_f64(&values, &DIMS, ids_dtype);
                let gpu_ids = ids.to_device(&device).unwrap();
                let what = format!("{dtype:?} {ids_dtype:?} dim {dim}");
                let expected = base.scatter_add(&ids, &src, dim).unwrap();
                let got = || gpu_base.scatter_add(&gpu_ids, &gpu_src, dim).unwrap();
                assert_added(got, &expected, &format!("scatter_add {what}"));
                if MOVING_IDS.contains(&ids_dtype) {
                    let expected = base.scatter(&ids, &src, dim).unwrap();
                    let got = gpu_base.scatter(&gpu_ids, &gpu_src, dim).unwrap();
                    assert_close(&got, &expected, 0.0, &format!("scatter {what}"));
                }
            }
        }
    }
}

/// Threads of many workgroups add to the same elements, and narrow elements share words. No addition may be lost; every
/// dtype can represent the sums.
#[test]
fn many_threads_add_to_few_elements() {
    let device = rocm();
    let (rows, places, columns) = (1024, 64, 5);
    let ids: Vec<f64> = (0..rows).map(|row| (row * 37 % places) as f64).collect();
    let ids = from_f64(&ids, &[rows], DType::U32).to_device(&device).unwrap();
    let wide = ids.unsqueeze(1).unwrap().broadcast_as((rows, columns)).unwrap().contiguous().unwrap();
    for dtype in ALL {
        let ones = Tensor::ones((rows, columns), dtype, &device).unwrap();
        let base = Tensor::zeros((places, columns), dtype, &device).unwrap();
        let expected = vec![(rows / places) as f64; places * columns];
        for (name, got) in [
            ("index_add", base.index_add(&ids, &ones, 0)),
            ("scatter_add", base.scatter_add(&wide, &ones, 0)),
        ] {
            assert_close_values(&to_f64(&got.unwrap()), &expected, 0.0, &format!("{name} {dtype:?}"));
        }
    }
}

/// Dims are so long that the ids are sorted first; some ids are the largest index, which is ignored.
#[test]
fn long_dims_are_added_in_order() {
    let device = rocm();
    for (dims, dim, places) in [([3, 300, 5], 1, 40), ([300, 3, 4], 0, 7), ([2, 3, 200], 2, 300)] {
        for (dtype, ids_dtype) in
            [(DType::F16, DType::U8), (DType::F32, DType::I64), (DType::BF16, DType::U32)]
        {
            let mut base_dims = dims;
            base_dims[dim] = places;
            let (base, src) = (tensor(&base_dims, dtype, 60.0), tensor(&dims, dtype, 7.0));
            let id = |i: usize| match (i % 31, ids_dtype) {
                (0, DType::U8) => 255,
                _ => (i * i % 101 % places) as i64,
            };
            let made = |count| Tensor::from_vec((0..count).map(id).collect(), count, &Device::Cpu);
            let ids = made(dims[dim]).unwrap().to_dtype(ids_dtype).unwrap();
            let wide = made(src.elem_count()).unwrap().to_dtype(ids_dtype).unwrap().reshape(&dims).unwrap();
            let [b, i, w, s] = [&base, &ids, &wide, &src].map(|t| t.to_device(&device).unwrap());
            let what = format!("{dims:?} along {dim} {dtype:?} {ids_dtype:?}");
            let (add, scatter_add) = (base.index_add(&ids, &src, dim), base.scatter_add(&wide, &src, dim));
            assert_deterministic(|| b.index_add(&i, &s, dim).unwrap(), &add.unwrap(), &what);
            assert_deterministic(|| b.scatter_add(&w, &s, dim).unwrap(), &scatter_add.unwrap(), &what);
            let scattered = base.scatter(&wide, &src, dim).unwrap();
            assert_close(&b.scatter(&w, &s, dim).unwrap(), &scattered, 0.0, &what);
        }
    }
}

#[test]
fn scatter_in_place() {
    let device = rocm();
    let (base, src) = (tensor(&[3, 4], DType::F32, 9.0), tensor(&[2, 4], DType::F32, 7.0));
    let ids = Tensor::new(&[[2u32, 0, 1, 1], [0, 0, 2, 1]], &Device::Cpu).unwrap();
    let (gpu_src, gpu_ids) = (src.to_device(&device).unwrap(), ids.to_device(&device).unwrap());
    let gpu_base = base.to_device(&device).unwrap();
    for (base, ids, src) in [(&base, &ids, &src), (&gpu_base, &gpu_ids, &gpu_src)] {
        base.scatter_set(ids, src, 0).unwrap();
        base.scatter_add_set(ids, src, 0).unwrap();
    }
    assert_close(&gpu_base, &base, 0.0, "in place");
}

#[test]
fn index_add_with_repeated_indices() {
    let device = rocm();
    for ids_dtype in ADDING_IDS {
        for dtype in ALL {
            for dim in 0..3 {
                let base = tensor(&DIMS, dtype, 60.0);
                let mut dims = DIMS;
                dims[dim] = 3;
                let src = tensor(&dims, dtype, 7.0);
                let ids = from_f64(&[1.0, 0.0, 1.0], &[3], ids_dtype);
                let expected = base.index_add(&ids, &src, dim).unwrap();
                let [base, ids, src] = [base, ids, src].map(|t| t.to_device(&device).unwrap());
                let got = || base.index_add(&ids, &src, dim).unwrap();
                assert_added(got, &expected, &format!("index_add {dtype:?} {ids_dtype:?} dim {dim}"));
            }
        }
    }
}

/// Upstream's CUDA backend applies the offset of the base twice.
#[test]
fn index_add_to_a_narrowed_base() {
    let device = rocm();
    let cpu = tensor(&[5, 3], DType::F32, 9.0);
    let src = tensor(&[2, 3], DType::F32, 4.0);
    let ids = Tensor::new(&[0u32, 2], &Device::Cpu).unwrap();
    let expected = cpu.narrow(0, 2, 3).unwrap().contiguous().unwrap().index_add(&ids, &src, 0).unwrap();
    let gpu = cpu.to_device(&device).unwrap().narrow(0, 2, 3).unwrap();
    let got = gpu.index_add(&ids.to_device(&device).unwrap(), &src.to_device(&device).unwrap(), 0).unwrap();
    assert_close(&got, &expected, 1e-6, "narrowed base");
}

#[test]
fn strided_operands_give_the_errors_of_the_cpu() {
    let device = rocm();
    let cpu = tensor(&[4, 4], DType::F32, 9.0);
    let gpu = cpu.to_device(&device).unwrap();
    let ids = Tensor::zeros((4, 4), DType::U32, &Device::Cpu).unwrap();
    let gpu_ids = ids.to_device(&device).unwrap();
    let row = |ids: &Tensor| ids.get(0).unwrap();
    let column = |ids: &Tensor| ids.get_on_dim(1, 0).unwrap();
    let t = |t: &Tensor| t.t().unwrap();
    let cases: [(&str, Result<Tensor>, Result<Tensor>); 8] = [
        ("gather", t(&gpu).gather(&gpu_ids, 0), t(&cpu).gather(&ids, 0)),
        ("gather ids", gpu.gather(&t(&gpu_ids), 0), cpu.gather(&t(&ids), 0)),
        ("scatter", gpu.scatter(&gpu_ids, &t(&gpu), 0), cpu.scatter(&ids, &t(&cpu), 0)),
        ("scatter ids", gpu.scatter(&t(&gpu_ids), &gpu, 0), cpu.scatter(&t(&ids), &cpu, 0)),
        ("scatter_add", gpu.scatter_add(&gpu_ids, &t(&gpu), 0), cpu.scatter_add(&ids, &t(&cpu), 0)),
        ("index_select", t(&gpu).index_select(&row(&gpu_ids), 0), t(&cpu).index_select(&row(&ids), 0)),
        ("index_add", gpu.index_add(&row(&gpu_ids), &t(&gpu), 0), cpu.index_add(&row(&ids), &t(&cpu), 0)),
        ("index_add ids", gpu.index_add(&column(&gpu_ids), &gpu, 0), cpu.index_add(&column(&ids), &cpu, 0)),
    ];
    for (name, got, expected) in cases {
        assert_same_error(got, expected, name);
    }
    // Both devices support strided bases.
    let expected = t(&cpu).index_add(&row(&ids), &cpu, 0).unwrap();
    assert_close(&t(&gpu).index_add(&row(&gpu_ids), &gpu, 0).unwrap(), &expected, 0.0, "strided base");
}

#[test]
fn sizes_of_zero() {
    let device = rocm();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &device).unwrap();
    let (t, none) = (zeros(&[3, 2], DType::F32), zeros(&[0], DType::U32));
    assert_eq!(t.index_select(&none, 0).unwrap().dims(), [0, 2]);
    assert_eq!(t.gather(&zeros(&[0, 2], DType::U32), 0).unwrap().dims(), [0, 2]);
    let empty = zeros(&[0, 2], DType::F32);
    assert_eq!(t.index_add(&none, &empty, 0).unwrap().to_vec2::<f32>().unwrap(), [[0.0; 2]; 3]);
    assert_eq!(t.scatter_add(&zeros(&[0, 2], DType::U32), &empty, 0).unwrap().dims(), [3, 2]);
    // Indices into an empty tensor are out of range.
    let one = zeros(&[1], DType::U32);
    let own = Device::new_rocm_with_stream(0).unwrap();
    let taken = empty.to_device(&own).unwrap().index_select(&one.to_device(&own).unwrap(), 0).unwrap();
    let error = taken.to_vec2::<f32>().unwrap_err().to_string();
    assert!(error.contains("index-select") && error.contains("size 0"), "{error}");
}

/// An embedding is an index_select of its table.
#[test]
fn an_embedding_names_the_index_that_is_out_of_range() {
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let table = Tensor::ones((10, 4), DType::F16, &device).unwrap();
    let ids = Tensor::new(&[[3u32, 9], [10, 0]], &device).unwrap();
    let rows = table.embedding(&ids.flatten_all().unwrap()).unwrap();
    let error = rows.to_vec2::<half::f16>().unwrap_err().to_string();
    assert!(
        error.contains("index-select") && error.contains("index 10") && error.contains("size 10"),
        "{error}"
    );
}

/// Thousands of lanes of several workgroups report faults concurrently. The record has the index and the bound of one of
/// them. After it was read, the next fault is recorded.
#[test]
fn concurrent_faults_leave_a_consistent_record() {
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    for round in 0..20usize {
        let bound = 2 + round;
        // Every lane has a different index, which modulo 1000 is the bound.
        let wrong: Vec<i64> = (1..=4096).map(|i| (i * 1000 + bound) as i64).collect();
        let ids = Tensor::from_vec(wrong, 4096, &device).unwrap();
        let data = Tensor::ones(bound, DType::F32, &device).unwrap();
        let (op, got) = match round % 2 {
            0 => ("index-select", data.index_select(&ids, 0)),
            _ => ("gather", data.gather(&ids, 0)),
        };
        let error = got.unwrap().to_vec1::<f32>().unwrap_err().to_string();
        let number = |name: &str| -> usize {
            let (_, rest) = error.split_once(name).unwrap();
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        assert!(error.contains(op), "{error}");
        assert_eq!((number("of size "), number("index ") % 1000), (bound, bound), "{error}");
    }
}

/// A result of an odd number of narrow elements ends within a word. Its elements are added by atomics all the same, and the
/// last place of an id wins without a sort.
#[test]
fn long_odd_dims_are_scattered() {
    let device = rocm();
    let dims = [131, 5];
    let values: Vec<f64> = (0..131 * 5).map(|i| (i * i % 101 % 29) as f64).collect();
    for dtype in ALL {
        let (base, src) = (tensor(&[29, 5], dtype, 60.0), tensor(&dims, dtype, 7.0));
        let ids = from_f64(&values, &dims, DType::U32);
        let [b, s, i] = [&base, &src, &ids].map(|t| t.to_device(&device).unwrap());
        let expected = base.scatter(&ids, &src, 0).unwrap();
        assert_close(&b.scatter(&i, &s, 0).unwrap(), &expected, 0.0, &format!("scatter {dtype:?}"));
        let ones = Tensor::ones(&dims, dtype, &Device::Cpu).unwrap();
        let zeros = base.zeros_like().unwrap();
        let expected = zeros.scatter_add(&ids, &ones, 0).unwrap();
        let [zeros, ones] = [&zeros, &ones].map(|t| t.to_device(&device).unwrap());
        let got = zeros.scatter_add(&i, &ones, 0).unwrap();
        assert_close(&got, &expected, 0.0, &format!("scatter_add {dtype:?}"));
    }
}

/// Dims of a source, and the destination's size: eight lines of last places take more than 32 KiB.
const MORE_THAN_LDS: ([usize; 3], usize) = ([2, 300, 9], 1100);

/// The destination is shorter than the ids along the dim, or longer, so that some of its elements remain. An id occurs
/// several times, and the last one wins.
#[test]
fn long_dims_are_scattered_to_any_size() {
    let device = rocm();
    for ([left, count, right], size) in [
        ([1, 65, 1], 1),
        ([2, 65, 3], 2),
        ([1, 131, 41], 3),
        ([3, 66, 5], 200),
        ([1, 100, 1], 251),
        MORE_THAN_LDS,
    ] {
        let dims = [left, count, right];
        let values: Vec<f64> = (0..dims.iter().product()).map(|i| (i * i % 1009 % size) as f64).collect();
        for dtype in [DType::U8, DType::F16, DType::F32, DType::F64] {
            let (base, src) = (tensor(&[left, size, right], dtype, 60.0), tensor(&dims, dtype, 7.0));
            let [b, s] = [&base, &src].map(|t| t.to_device(&device).unwrap());
            for ids_dtype in MOVING_IDS.into_iter().filter(|&ids| ids != DType::U8 || size <= 255) {
                let ids = from_f64(&values, &dims, ids_dtype);
                let got = b.scatter(&ids.to_device(&device).unwrap(), &s, 1).unwrap();
                let what = format!("{dtype:?} {ids_dtype:?} {dims:?} to {size}");
                assert_close(&got, &base.scatter(&ids, &src, 1).unwrap(), 0.0, &what);
            }
        }
    }
}

/// Ids out of range are reported, and those that mean "no element" are not.
#[test]
fn scatter_along_a_long_dim_names_the_index_that_is_out_of_range() {
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let [base, src] = [3, 70]
        .map(|rows| Tensor::ones((rows, 2), DType::F32, &device).unwrap().affine(rows as f64, 0.0).unwrap());
    let scattered = |wrong: u32| {
        let mut ids = vec![1u32; 140];
        ids[77] = wrong;
        base.scatter(&Tensor::from_vec(ids, (70, 2), &device).unwrap(), &src, 0).unwrap().to_vec2::<f32>()
    };
    assert_eq!(scattered(u32::MAX).unwrap(), [[3.0; 2], [70.0; 2], [3.0; 2]]);
    let error = scattered(3).unwrap_err().to_string();
    assert!(error.contains("scatter") && error.contains("index 3") && error.contains("size 3"), "{error}");
}
