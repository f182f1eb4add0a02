//! Safetensors folders with quantized weights: GPTQ, AWQ, compressed-tensors and floats of 8 bits. They are compared with the
//! numbers, scales and zero points from which they were packed.
use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::LoadOptions;
use llm_engine::model::files::{Format, ModelFiles};
use serde_json::{Value, json};

use super::checkpoints::{check_median, checkpoint, data};
use super::configs::{Case, named};
use super::packing::Packing::{self, Awq, CompressedTensors, Gptq};
use super::packing::{self, FourBits, Kind, Stored, Tensors, floats_of_8_bits, in_blocks, integers};
use super::reference;
use super::steps::{
    LENGTHS, Runner, load, load_on_cpu, load_with, random, reference_on_cpu, run_on_cpu, run_texts,
};

/// Largest error of numbers that are rounded to f16, relative to them.
const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// Name of a tensor.
pub const NAME: &str = "model.layers.0.mlp.down_proj.weight";
pub const BASE: &str = "model.layers.0.mlp.down_proj";
/// Shape of the tensor with this name.
pub const SHAPE: [usize; 2] = [128, 256];

/// Returns the format that weights become.
fn format_of(packing: Packing, kind: Kind) -> Format {
    match (packing, kind) {
        // One group is in order.
        (_, Kind { reordered: true, group, .. }) if group < SHAPE[1] => Format::Floats(DType::F32),
        (Awq, _) | (_, Kind { symmetric: false, .. }) => Format::Blocks(GgmlDType::Q4_1),
        _ => Format::Blocks(GgmlDType::Q4_0),
    }
}

fn kinds() -> Vec<(Packing, Kind)> {
    let mut all = Vec::new();
    for packing in [Gptq(1), Gptq(2), Awq, CompressedTensors] {
        for group in [32, 64, 128, SHAPE[1]] {
            for (symmetric, reordered) in [(true, false), (false, false), (true, true), (false, true)] {
                if !(reordered && matches!(packing, Awq)) {
                    all.push((packing, Kind { group, symmetric, reordered }));
                }
            }
        }
    }
    all
}

fn write(folder: &Path, quantization: &Value, tensors: &Tensors) {
    packing::write(folder, &json!({"quantization_config": quantization}), tensors);
}

/// Returns a Llama whose rows consist of whole blocks and groups, and its float weights.
pub fn llama() -> (Case, HashMap<String, Tensor>) {
    let mut case = named("llama");
    for (key, value) in [("hidden_size", 128), ("intermediate_size", 256), ("num_hidden_layers", 1)] {
        case.config[key] = value.into();
    }
    let (_, weights) = reference::model(&case);
    (case, weights)
}

/// Reads a part of the tensor [`NAME`] as floats.
fn values(files: &ModelFiles, rows: [usize; 2], columns: [usize; 2]) -> Vec<f32> {
    values_of(files, NAME, rows, columns)
}

fn values_of(files: &ModelFiles, name: &str, rows: [usize; 2], columns: [usize; 2]) -> Vec<f32> {
    let format = files.location(name).unwrap().format;
    let bytes = files.part(name, rows[0]..rows[1], columns[0]..columns[1]).unwrap();
    floats(&bytes, format, [rows[1] - rows[0], columns[1] - columns[0]])
}

/// Converts the bytes of a matrix to floats.
fn floats(bytes: &[u8], format: Format, shape: [usize; 2]) -> Vec<f32> {
    let tensor = match format {
        Format::Floats(dtype) => Tensor::from_raw_buffer(bytes, dtype, &shape, &Device::Cpu).unwrap(),
        Format::Blocks(dtype) => {
            let blocks = qtensor_from_ggml(dtype, bytes, shape.to_vec(), &Device::Cpu).unwrap();
            blocks.dequantize(&Device::Cpu).unwrap()
        }
    };
    tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// Checks that parts of a tensor, as ranks read them, have the values of the whole.
fn check_parts(files: &ModelFiles, whole: &[f32], what: &str) {
    for (rows, columns) in
        [([3, 13], [0, 256]), ([0, 128], [96, 224]), ([121, 128], [32, 64]), ([64, 65], [0, 256])]
    {
        let of_row = |row: usize| &whole[row * SHAPE[1] + columns[0]..row * SHAPE[1] + columns[1]];
        let expected: Vec<f32> = (rows[0]..rows[1]).flat_map(of_row).copied().collect();
        assert!(values(files, rows, columns) == expected, "{what}: rows {rows:?}, columns {columns:?}");
    }
}

/// Weights are exact, except that Q4_1 rounds scale · zero point to f16.
#[test]
fn weights_of_four_bits_keep_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let mut worst = 0f32;
    for (seed, (packing, kind)) in kinds().into_iter().enumerate() {
        let weights = FourBits::random(seed, SHAPE, kind);
        write(folder.path(), &packing.config(kind), &packing.tensors(&weights, BASE, kind));
        let files = ModelFiles::open(folder.path()).unwrap();
        let info = files.location(NAME).unwrap();
        assert_eq!(
            (info.format, &info.shape[..]),
            (format_of(packing, kind), &SHAPE[..]),
            "{packing:?} {kind:?}"
        );
        let got = values(&files, [0, SHAPE[0]], [0, SHAPE[1]]);
        let (expected, minimums) = weights.weights();
        let mut check = |got: &[f32], format: Format, order: &dyn Fn(usize) -> usize| {
            let is_exact = format != Format::Blocks(GgmlDType::Q4_1);
            for (index, got) in got.iter().enumerate() {
                let place = index / SHAPE[1] * SHAPE[1] + order(index % SHAPE[1]);
                let (expected, minimum) = (expected[place], minimums[place]);
                let off = (got - expected).abs();
                worst = worst.max(off / minimum.max(f32::MIN_POSITIVE));
                // Sums of f32 add a rounding of their own.
                let bound = if is_exact { 0.0 } else { (F16_ROUNDING + 2.0 * f32::EPSILON) * minimum };
                assert!(off <= bound, "{packing:?} {kind:?}: {got}, expected {expected}");
            }
        };
        check(&got, info.format, &|input| input);
        if let Some((format, order)) = info.ordered() {
            let in_order = format_of(packing, Kind { reordered: false, ..kind });
            assert_eq!(format, in_order);
            let bytes = files.ordered_rows(NAME, 0..SHAPE[0]).unwrap();
            check(&floats(&bytes, format, SHAPE), format, &|input| order[input] as usize);
        }
        assert_eq!(info.ordered().is_some(), matches!(info.format, Format::Floats(_)));
        check_parts(&files, &got, &format!("{packing:?} {kind:?}"));
    }
    println!("largest error of Q4_1: {worst} of scale · zero point");
}

/// Symmetric weights of eight bits are exact in Q8_0, whose blocks have the order of groups; others are floats.
#[test]
fn weights_of_eight_bits_keep_their_values() {
    let [outputs, inputs] = SHAPE;
    let (group, groups) = (64, inputs / 64);
    for (symmetric, reordered, version) in
        [(true, false, 1), (true, true, 2), (false, false, 1), (false, true, 2)]
    {
        let mut next = random(7);
        let mut byte = || ((next() + 1.0) * 127.9) as u32;
        let numbers: Vec<u32> = (0..outputs * inputs).map(|_| byte()).collect();
        let zeros: Vec<u32> = (0..groups * outputs).map(|_| if symmetric { 128 } else { byte() }).collect();
        let scales: Vec<f32> = (0..groups * outputs).map(|_| (1 + byte()) as f32 * 2f32.powi(-13)).collect();
        let of_inputs: Vec<usize> =
            (0..inputs).map(|input| if reordered { input * 37 % inputs } else { input } / group).collect();
        let number = |output: usize, input: usize| numbers[output * inputs + input];
        let down = (0..inputs / 4).flat_map(|word| (0..outputs).map(move |output| (word, output)));
        let packed =
            down.map(|(word, output)| (0..4).map(|at| number(output, word * 4 + at) << (8 * at)).sum());
        let less = if version == 1 { 0x0101_0101 } else { 0u32 };
        let words = zeros.chunks_exact(4).map(|four| {
            let word: u32 = four.iter().enumerate().map(|(at, zero)| zero << (8 * at)).sum();
            word.wrapping_sub(less)
        });
        let tensors = [
            ("qweight", Stored::i32(&[inputs / 4, outputs], packed)),
            ("qzeros", Stored::i32(&[groups, outputs / 4], words)),
            ("scales", Stored::f16(&[groups, outputs], &scales)),
            ("g_idx", Stored::i32(&[inputs], of_inputs.iter().map(|group| *group as u32))),
        ];
        let tensors = tensors.map(|(part, tensor)| (format!("{BASE}.{part}"), tensor)).into();
        let mut config = Gptq(version).config(Kind { group, symmetric, reordered });
        config["bits"] = 8.into();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config, &tensors);
        let files = ModelFiles::open(folder.path()).unwrap();
        let info = files.location(NAME).unwrap();
        let blocks = Format::Blocks(GgmlDType::Q8_0);
        assert_eq!(info.format, if symmetric && !reordered { blocks } else { FLOATS });
        let weight = |output: usize, input: usize| {
            let place = of_inputs[input] * outputs + output;
            scales[place] * (number(output, input) as f32 - zeros[place] as f32)
        };
        let expected = |order: &dyn Fn(usize) -> usize| -> Vec<f32> {
            (0..outputs)
                .flat_map(|output| (0..inputs).map(move |at| (output, at)))
                .map(|(output, at)| weight(output, order(at)))
                .collect()
        };
        let got = values(&files, [0, outputs], [0, inputs]);
        assert!(got == expected(&|at| at), "{symmetric} {reordered}");
        check_parts(&files, &got, "eight bits");
        let ordered = info.ordered();
        assert_eq!(ordered.is_some(), symmetric && reordered);
        if let Some((format, order)) = ordered {
            let bytes = files.ordered_rows(NAME, 0..outputs).unwrap();
            assert!(floats(&bytes, format, SHAPE) == expected(&|at| order[at] as usize));
        }
    }
}

const Q4_1: Format = Format::Blocks(GgmlDType::Q4_1);
const FLOATS: Format = Format::Floats(DType::F32);
/// Folders that `quantized.py` writes, and the formats that the weights become.
pub const PUBLISHED: [(&str, Format); 8] = [
    ("gptq", Q4_1),
    ("gptq-reordered", FLOATS),
    ("awq", Q4_1),
    ("pack", Q4_1),
    ("pack-channel", Format::Blocks(GgmlDType::Q4_0)),
    ("int", Format::Blocks(GgmlDType::Q8_0)),
    ("float", FLOATS),
    ("float-block", FLOATS),
];

/// Compares matrices that published packages have packed with the weights that they unpack (see `quantized.py`).
#[test]
fn weights_of_published_packers_keep_their_values() {
    for (name, format) in PUBLISHED {
        let files = ModelFiles::open(&data(&format!("quantized-{name}"))).unwrap();
        let info = files.location("x.weight").unwrap();
        assert_eq!((info.format, &info.shape[..]), (format, &[32, 128][..]), "{name}");
        let [got, expected] = ["x.weight", "expected"].map(|name| values_of(&files, name, [0, 32], [0, 128]));
        // Scales are below 1 / 32, and zero points at most 15.
        let bound = if format == Q4_1 { 15.0 / 32.0 * F16_ROUNDING } else { 0.0 };
        let off =
            got.iter().zip(&expected).fold(0f32, |most, (got, expected)| most.max((got - expected).abs()));
        println!("{name}: {off}");
        assert!(off <= bound, "{name}: {off}");
    }
}

/// Configuration, dtype of the weights, name and shape of the scales, and the numbers of rows and columns that share one.
type Scales = (Value, &'static str, &'static str, Vec<usize>, [usize; 2]);

fn scales_of_8_bits() -> Vec<Scales> {
    let fp8 = |block: Value| json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": block});
    let of = |kind: &str, format: &str| {
        json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": kind}, "input_activations": {"num_bits": 8}}}})
    };
    let quark = json!({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}});
    let [outputs, inputs] = SHAPE;
    vec![
        (fp8(json!([128, 128])), "F8_E4M3", "weight_scale_inv", vec![1, 2], [128, 128]),
        (fp8(json!([48, 96])), "F8_E4M3", "weight_scale_inv", vec![3, 3], [48, 96]),
        (fp8(Value::Null), "F8_E4M3", "weight_scale", vec![], SHAPE),
        (quark, "F8_E4M3", "weight_scale", vec![1], SHAPE),
        (of("float", "float-quantized"), "F8_E4M3", "weight_scale", vec![outputs, 1], [1, inputs]),
        (json!({"quant_method": "fbgemm_fp8"}), "F8_E4M3", "weight_scale", vec![outputs], [1, inputs]),
        (of("int", "int-quantized"), "I8", "weight_scale", vec![outputs, 1], [1, inputs]),
        (of("int", "int-quantized"), "I8", "weight_scale", vec![outputs, 8], [1, 32]),
        (of("int", "int-quantized"), "I8", "weight_scale", vec![], SHAPE),
    ]
}

/// Weights are the product of number and scale in f32, rounded once if they become floats of 16 bits. Q8_0 rounds scales to
/// f16; these are exact.
#[test]
fn weights_of_8_bits_keep_their_values() {
    for (seed, (config, dtype, name, scale_shape, shared_by)) in scales_of_8_bits().into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (bytes, floats) = floats_of_8_bits(seed, SHAPE[0] * SHAPE[1]);
        let is_integer = dtype == "I8";
        let number = |index: usize| if is_integer { f32::from(bytes[index] as i8) } else { floats[index] };
        let count: usize = scale_shape.iter().product();
        let scales: Vec<f32> = (0..count)
            .map(|index| if is_integer { (64 + index) as f32 / 1024.0 } else { 0.0123 * (index + 1) as f32 })
            .collect();
        let per_row = SHAPE[1].div_ceil(shared_by[1]);
        let scale = |index: usize| {
            scales[index / SHAPE[1] / shared_by[0] * per_row + index % SHAPE[1] / shared_by[1]]
        };
        let expected: Vec<f32> = (0..bytes.len()).map(|index| number(index) * scale(index)).collect();
        let tensors = [
            (NAME.to_owned(), Stored { dtype, shape: SHAPE.into(), bytes: bytes.clone() }),
            (format!("{BASE}.{name}"), Stored::f32(&scale_shape, &scales)),
        ];
        write(folder.path(), &config, &tensors.into());
        let mut files = ModelFiles::open(folder.path()).unwrap();
        let what = format!("{config} {scale_shape:?}");
        let got = values(&files, [0, SHAPE[0]], [0, SHAPE[1]]);
        assert!(got == expected, "{what}");
        check_parts(&files, &got, &what);
        let format = files.location(NAME).unwrap().format;
        assert_eq!(format == Format::Blocks(GgmlDType::Q8_0), is_integer, "{what}");
        for dtype in [DType::BF16, DType::F16] {
            files.dequantize_as(dtype);
            let rounded = Tensor::new(&expected[..], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let rounded: Vec<f32> = rounded.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
            let expected = if is_integer { &expected } else { &rounded };
            assert!(values(&files, [0, SHAPE[0]], [0, SHAPE[1]]) == *expected, "{what} as {dtype:?}");
        }
    }
}

/// Compares the logits of a quantized folder with those of its weights as floats.
fn check_logits(config: &Value, quantization: &Value, [quantized, floats]: &[Tensors; 2], is_exact: bool) {
    let [folder, float_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    packing::write(float_folder.path(), config, floats);
    let mut config = config.clone();
    config["quantization_config"] = quantization.clone();
    packing::write(folder.path(), &config, quantized);
    let (mut model, mut known) = (reference_on_cpu(float_folder.path()), HashMap::new());
    let reference =
        &mut |tokens: &[u32]| known.entry(tokens.to_vec()).or_insert_with(|| model(tokens)).clone();
    if is_exact {
        let off = run_texts(Runner::new(load(folder.path()), &LENGTHS), reference, 1e-4);
        println!("worst {}", off.into_iter().fold(0f32, f32::max));
        run_on_cpu(Runner::new(load_on_cpu(folder.path()), &LENGTHS), reference);
        return;
    }
    let on_gpu = cfg!(feature = "rocm-emulator");
    // Published files often declare bf16.
    let in_bf16 = || {
        let options = LoadOptions { dtype: Some(DType::BF16), ..LoadOptions::default() };
        load_with(folder.path(), options)
    };
    let models = [
        Some(load(folder.path())),
        on_gpu.then(|| load_on_cpu(folder.path())),
        (on_gpu && quantization["quant_method"] == "awq").then(in_bf16),
    ];
    for model in models.into_iter().flatten() {
        let off = run_texts(Runner::new(model, &LENGTHS), reference, f32::MAX);
        check_median(off, &quantization["quant_method"].to_string());
    }
}

#[test]
fn logits_of_four_bits_are_those_of_the_float_weights() {
    let (case, weights) = llama();
    for (packing, kind) in [
        (Gptq(1), Kind { group: 128, symmetric: true, reordered: false }),
        (Gptq(1), Kind { group: 64, symmetric: false, reordered: true }),
        (Awq, Kind { group: 64, symmetric: false, reordered: false }),
        (CompressedTensors, Kind { group: 32, symmetric: false, reordered: false }),
    ] {
        println!("{packing:?} {kind:?}");
        let both = packing::checkpoints(&weights, &|seed, base, shape| {
            let weights = FourBits::random(seed, shape, kind);
            (packing.tensors(&weights, base, kind), weights.weights().0)
        });
        check_logits(&case.config, &packing.config(kind), &both, false);
    }
}

#[test]
fn logits_of_8_bits_are_those_of_the_float_weights() {
    let (case, weights) = llama();
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"});
    check_logits(&case.config, &fp8, &packing::checkpoints(&weights, &in_blocks), true);
    let int8 = json!({"quant_method": "compressed-tensors", "format": "int-quantized"});
    let both = packing::checkpoints(&weights, &|seed, base, shape @ [outputs, inputs]| {
        let bytes = integers(seed, outputs * inputs);
        let scales: Vec<f32> = (0..outputs).map(|index| (128 + index) as f32 * 2f32.powi(-17)).collect();
        let values = bytes.iter().enumerate();
        let values = values.map(|(index, byte)| f32::from(*byte as i8) * scales[index / inputs]).collect();
        let tensors = [
            (format!("{base}.weight"), Stored { dtype: "I8", shape: shape.into(), bytes }),
            (format!("{base}.weight_scale"), Stored::f32(&[outputs, 1], &scales)),
        ];
        (tensors.into(), values)
    });
    check_logits(&case.config, &int8, &both, false);
}

/// The router and the head stay floats.
#[test]
fn experts_are_quantized_separately() {
    let mut case = named("qwen3moe");
    case.config["num_hidden_layers"] = 1.into();
    let (_, weights) = reference::model(&case);
    for reordered in [false, true] {
        let kind = Kind { group: 32, symmetric: true, reordered };
        let both = packing::checkpoints(&weights, &|seed, base, shape| {
            let weights = FourBits::random(seed, shape, kind);
            (weights.gptq(base, 1), weights.weights().0)
        });
        check_logits(&case.config, &Gptq(1).config(kind), &both, false);
    }
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    check_logits(&case.config, &fp8, &packing::checkpoints(&weights, &in_blocks), false);
}

/// Projections of latent attention, experts and a shared expert.
#[test]
fn deepseek_v3_in_floats_of_8_bits() {
    let (config, weights) = checkpoint("deepseek-v3");
    let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    check_logits(&config, &fp8, &packing::checkpoints(&weights, &in_blocks), false);
}
