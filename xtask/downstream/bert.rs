//! Runs a BERT model of the published candle-transformers and compares the hidden states of ROCm and CPU.
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config, HiddenAct, PositionEmbeddingType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        vocab_size: 64,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        hidden_act: HiddenAct::Gelu,
        max_position_embeddings: 16,
        position_embedding_type: PositionEmbeddingType::Absolute,
        ..Config::default()
    };
    let vars = VarMap::new();
    BertModel::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu), &config)?;
    let weights = std::env::temp_dir().join(format!("downstream-{}.safetensors", std::process::id()));
    vars.save(&weights)?;
    let forward = |device: &Device| -> Result<Tensor, Box<dyn std::error::Error>> {
        let vb = VarBuilder::from_buffered_safetensors(std::fs::read(&weights)?, DType::F32, device)?;
        let ids = Tensor::new(&[[3u32, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]], device)?;
        let hidden = BertModel::load(vb, &config)?.forward(&ids, &ids.zeros_like()?, None)?;
        Ok(hidden.i((.., 0))?.to_device(&Device::Cpu)?)
    };
    let rocm = Device::new_rocm(0)?;
    let difference =
        (forward(&rocm)? - forward(&Device::Cpu)?)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    std::fs::remove_file(&weights)?;
    println!("{:?}: max_abs_diff {difference:e}", rocm.location());
    if difference < 1e-4 { Ok(()) } else { Err("the hidden states of ROCm and CPU differ by 1e-4 or more".into()) }
}
