//! Matrices in GGML's block formats: dequantization, products with f32 rows, and a quantized Llama model.
use crate::case::{Case, Cases, Scale, Work, dims_name};
use crate::model::{FULL, SMOKE, Setup};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::borrow::Cow;
use std::hint::black_box;
use std::io::Cursor;

const GROUP: &str = "quantized";

/// Formats with the names of their cases.
const FORMATS: [(GgmlDType, &str, &str); 4] = [
    (GgmlDType::Q4K, "dequantize_q4k", "qmatmul_q4k"),
    (GgmlDType::Q6K, "dequantize_q6k", "qmatmul_q6k"),
    (GgmlDType::Q8_0, "dequantize_q8_0", "qmatmul_q8_0"),
    (GgmlDType::Q4_0, "dequantize_q4_0", "qmatmul_q4_0"),
];
/// Rows, columns of the input, and columns of the product.
const PRODUCTS: [[usize; 3]; 8] = [
    [1, 4096, 4096],
    [1, 4096, 32000],
    [4, 4096, 4096],
    [8, 4096, 4096],
    [16, 4096, 4096],
    [64, 4096, 4096],
    [512, 4096, 4096],
    [512, 4096, 11008],
];
/// Number of matrices that are multiplied in turn, so that none is cached.
const COLD: usize = 24;
/// Maximum number of rows for which reading the blocks dominates the time.
const FEW_ROWS: usize = 64;

/// Rounds a number of columns up to whole blocks.
fn columns(dim: usize) -> usize {
    dim.next_multiple_of(256)
}

pub fn cases(cases: &mut Cases) {
    for (format, dequantize, product) in FORMATS {
        let [n, k] = [4096, 4096].map(|dim| columns(cases.scale.dim(dim)));
        let bytes = block_bytes(format, n * k);
        let whole = move |device: &Device| {
            let matrix = matrix(format, n, k, device)?;
            Ok(Box::new(move || matrix.dequantize(&matrix.device()).map(|all| drop(black_box(all)))) as Work)
        };
        cases.work([GROUP, dequantize], "f32", dims_name(&[n, k]), whole).bytes(bytes + 4 * n * k);
        for full in PRODUCTS {
            let [m, k, n] = cases.scale.dims(full);
            let (k, shape) = (columns(k), dims_name(&[m, columns(k), n]));
            let case = cases
                .work([GROUP, product], "f32", shape, move |device| multiply(format, [m, k, n], 1, device));
            amounts(case, format, [m, k, n]);
        }
    }
    let [m, k, n] = cases.scale.dims([1, 4096, 4096]);
    let (k, format) = (columns(k), GgmlDType::Q4K);
    let cold = move |device: &Device| multiply(format, [m, k, n], COLD, device);
    let case = cases.work([GROUP, "qmatmul_q4k_cold"], "f32", dims_name(&[m, k, n]), cold);
    amounts(case, format, [m, k, n]);

    let setup =
        if cases.scale == Scale::Smoke { Setup { hidden: 256, intermediate: 256, ..SMOKE } } else { FULL };
    for (format, dtype) in [(GgmlDType::Q4K, "q4k"), (GgmlDType::Q8_0, "q8_0")] {
        let shape = setup.prompt.to_string();
        cases
            .work([GROUP, "qllama_prefill"], dtype, shape, move |device| {
                Llama::new(setup, format, device)?.prefill()
            })
            .flops(setup.prefill_flops());
        let shape = format!("{} after {}", setup.decoded, setup.prompt);
        let decode = move |device: &Device| Llama::new(setup, format, device)?.decode();
        cases
            .work([GROUP, "qllama_decode_token"], dtype, shape, decode)
            .bytes(block_bytes(format, setup.weights()) + setup.cache_bytes(DType::F32));
    }
}

fn amounts(case: &mut Case, format: GgmlDType, [m, k, n]: [usize; 3]) {
    match m <= FEW_ROWS {
        true => case.bytes(block_bytes(format, n * k) + 4 * m * (n + k)),
        false => case.flops(2 * m * n * k),
    };
}

pub fn block_bytes(format: GgmlDType, elements: usize) -> usize {
    elements / format.block_size() * format.type_size()
}

/// Returns a matrix of repeated blocks of normally distributed numbers.
pub fn matrix(format: GgmlDType, n: usize, k: usize, device: &Device) -> Result<QTensor> {
    let period = 64 * 256;
    let values = Tensor::randn(0f32, 0.02, period, &Device::Cpu)?;
    let blocks = QTensor::quantize(&values, format)?.data()?.into_owned();
    let bytes = blocks.iter().copied().cycle().take(block_bytes(format, n * k)).collect();
    QTensor::new(QStorage::from_data(Cow::Owned(bytes), device, format)?, (n, k))
}

/// Returns the product of `m` rows with `count` matrices in turn.
fn multiply(format: GgmlDType, [m, k, n]: [usize; 3], count: usize, device: &Device) -> Result<Work> {
    let pair = |_| {
        let rows = Tensor::randn(0f32, 1., (m, k), device)?;
        Ok((QMatMul::from_qtensor(matrix(format, n, k, device)?)?, rows))
    };
    let pairs = (0..count).map(pair).collect::<Result<Vec<_>>>()?;
    let mut turn = 0;
    Ok(Box::new(move || {
        let (matrix, rows) = &pairs[turn % count];
        turn += 1;
        matrix.forward(rows).map(|product| drop(black_box(product)))
    }))
}

/// candle-transformers' quantized Llama, loaded from a file in memory.
struct Llama {
    model: ModelWeights,
    setup: Setup,
    device: Device,
}

impl Llama {
    fn new(setup: Setup, format: GgmlDType, device: &Device) -> Result<Self> {
        let mut tensors = vec![("output_norm.weight".to_string(), ones(setup.hidden)?)];
        let mut add = |name: String, n, k| -> Result<()> {
            tensors.push((name, matrix(format, n, k, &Device::Cpu)?));
            Ok(())
        };
        let (hidden, narrow, intermediate) = (setup.hidden, setup.kv_width(), setup.intermediate);
        add("token_embd.weight".into(), setup.vocabulary, hidden)?;
        add("output.weight".into(), setup.vocabulary, hidden)?;
        for layer in 0..setup.layers {
            for (name, n, k) in [
                ("attn_q", hidden, hidden),
                ("attn_k", narrow, hidden),
                ("attn_v", narrow, hidden),
                ("attn_output", hidden, hidden),
                ("ffn_gate", intermediate, hidden),
                ("ffn_up", intermediate, hidden),
                ("ffn_down", hidden, intermediate),
            ] {
                add(format!("blk.{layer}.{name}.weight"), n, k)?;
            }
        }
        for layer in 0..setup.layers {
            for name in ["attn_norm", "ffn_norm"] {
                tensors.push((format!("blk.{layer}.{name}.weight"), ones(hidden)?));
            }
        }
        let number = |value: usize| Value::U32(value as u32);
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.attention.head_count", number(setup.heads)),
            ("llama.attention.head_count_kv", number(setup.kv_heads)),
            ("llama.block_count", number(setup.layers)),
            ("llama.embedding_length", number(hidden)),
            ("llama.rope.dimension_count", number(hidden / setup.heads)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
        let named: Vec<(&str, &QTensor)> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &named)?;
        file.set_position(0);
        let content = gguf_file::Content::read(&mut file)?;
        let model = ModelWeights::from_gguf(content, &mut file, device)?;
        Ok(Self { model, setup, device: device.clone() })
    }

    fn prompt(&self) -> Result<Tensor> {
        let tokens = (0..self.setup.prompt).map(|at| (at * 31 % self.setup.vocabulary) as u32);
        Tensor::from_iter(tokens, &self.device)?.unsqueeze(0)
    }

    fn prefill(mut self) -> Result<Work> {
        let prompt = self.prompt()?;
        Ok(Box::new(move || self.model.forward(&prompt, 0).map(|logits| drop(black_box(logits)))))
    }

    /// Decodes one token greedily per call; after `setup.decoded` tokens it restarts after the prompt.
    fn decode(mut self) -> Result<Work> {
        let next = |logits: Tensor| logits.argmax(D::Minus1)?.unsqueeze(0);
        let prompt = self.prompt()?;
        let first = next(self.model.forward(&prompt, 0)?)?;
        let (filled, mut token, mut step) = (self.model.clone(), first.clone(), 0);
        Ok(Box::new(move || {
            if step == self.setup.decoded {
                (self.model, token, step) = (filled.clone(), first.clone(), 0);
            }
            token = next(self.model.forward(&token, self.setup.prompt + step)?)?;
            step += 1;
            black_box(token.flatten_all()?.to_vec1::<u32>()?);
            Ok(())
        }))
    }
}

fn ones(len: usize) -> Result<QTensor> {
    QTensor::quantize(&Tensor::ones(len, DType::F32, &Device::Cpu)?, GgmlDType::F32)
}
