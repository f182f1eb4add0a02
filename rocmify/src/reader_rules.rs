//! Rules that fix upstream's readers of model files: a length, count or offset is validated against the file, and an error
//! names the tensor and the field. The inserted code calls `candle-core/src/model_files/`.

use crate::rules::{Rule, after, before, replace};

/// All rules for readers of model files.
pub const READER_RULES: &[Rule] = &[
    // GGUF: a reader that tracks the current field and the remaining bytes of the file.
    after(
        "gguf-read-fields",
        GGUF,
        "    pub fn read<R: std::io::Seek + std::io::Read>(reader: &mut R) -> Result<Self> {\n",
        READ_GGUF,
    ),
    before(
        "gguf-counts",
        GGUF,
        "        let tensor_count = read_length(",
        "        reader.field(\"counts of tensors and metadata\");\n",
    ),
    before(
        "gguf-key",
        GGUF,
        "            let key = read_string(",
        "            reader.field(format!(\"key of metadata {_idx}\"));\n",
    ),
    after(
        "gguf-value",
        GGUF,
        "            let key = read_string(reader, &magic, file_size)?;\n",
        "            reader.field(format!(\"metadata `{key}`\"));\n            reader.check_not_seen(&metadata, &key)?;\n",
    ),
    replace(
        "gguf-array",
        GGUF,
        1,
        "let mut vs = Vec::new();",
        "let mut vs = crate::model_files::reserve_values(len)?;",
    ),
    before(
        "gguf-name",
        GGUF,
        "            let tensor_name = read_string(",
        "            reader.field(format!(\"name of tensor {_idx}\"));\n",
    ),
    after(
        "gguf-dimensions",
        GGUF,
        "            let tensor_name = read_string(reader, &magic, file_size)?;\n",
        "            reader.field(format!(\"dimensions of tensor `{tensor_name}`\"));\n            reader.check_not_seen(&tensor_infos, &tensor_name)?;\n",
    ),
    before(
        "gguf-type",
        GGUF,
        "            let ggml_dtype = reader.read_u32",
        "            reader.field(format!(\"type of tensor `{tensor_name}`\"));\n",
    ),
    before(
        "gguf-offset",
        GGUF,
        "            let offset = reader.read_u64",
        "            reader.field(format!(\"offset of tensor `{tensor_name}`\"));\n",
    ),
    after("gguf-alignment", GGUF, "            _ => DEFAULT_ALIGNMENT,\n        };\n", ALIGNMENT),
    before(
        "gguf-tensors",
        GGUF,
        "        Ok(Self {\n            magic,\n",
        "        reader.field(\"tensors\");\n        crate::model_files::check_tensors(&tensor_infos, tensor_data_offset, alignment)?;\n",
    ),
    before(
        "gguf-tensor-size",
        GGUF,
        "        let tensor_elems = self.shape.elem_count();\n",
        "        crate::model_files::size_in_bytes(self.ggml_dtype, self.shape.dims())?;\n",
    ),
    after(
        "gguf-tensor-name",
        GGUF,
        "        tensor_info.read(reader, self.tensor_data_offset, device)\n",
        "            .map_err(|error| crate::model_files::in_tensor(name, error))\n",
    ),
    // Without this, a merge that is longer than every token makes the tokenizer panic.
    before(
        "gguf-merges",
        "quantized/tokenizer.rs",
        "        let mut builder = BPE::builder()",
        "        crate::model_files::check_merges(&tokens, &merges)?;\n",
    ),
    // GGML.
    after(
        "ggml-imports",
        GGML,
        "use byteorder::{LittleEndian, ReadBytesExt};\n",
        "use std::io::{Read, Seek};\n",
    ),
    after(
        "ggml-read-fields",
        GGML,
        "        reader: &mut R,\n        device: &Device,\n    ) -> Result<Content> {\n",
        READ_GGML,
    ),
    before(
        "ggml-parameters",
        GGML,
        "        let hparams = HParams::read(",
        "        reader.field(\"hyperparameters\");\n",
    ),
    replace(
        "ggml-vocabulary-reader",
        GGML,
        1,
        "(reader: &mut R, n_vocab: usize)",
        "(\n        reader: &mut crate::model_files::FieldReader<'_, R>,\n        n_vocab: usize,\n    )",
    ),
    before(
        "ggml-vocabulary",
        GGML,
        "        let mut token_score_pairs =",
        "        reader.field(\"vocabulary\");\n        reader.check_remaining(n_vocab, 8)?;\n",
    ),
    before(
        "ggml-token",
        GGML,
        "            let mut word = vec!",
        "            reader.field(format!(\"token {_index} of the vocabulary\"));\n            reader.check_remaining(len, 1)?;\n",
    ),
    before(
        "ggml-tensor",
        GGML,
        "            let (name, tensor) = read_one_tensor(",
        "            reader.field(format!(\"header of tensor {}\", tensors.len()));\n",
    ),
    replace(
        "ggml-tensor-reader",
        GGML,
        1,
        "read_one_tensor<R: std::io::Seek + std::io::Read>(\n    reader: &mut R,",
        "read_one_tensor<R: std::io::Seek + std::io::Read>(\n    reader: &mut crate::model_files::FieldReader<'_, R>,",
    ),
    before(
        "ggml-dimensions",
        GGML,
        "    let mut dims = vec![0u32; n_dims as usize];\n",
        "    reader.check_remaining(n_dims as usize, 4)?;\n",
    ),
    before(
        "ggml-name",
        GGML,
        "    let mut name = vec![0u8; name_len as usize];\n",
        "    reader.check_remaining(name_len as usize, 1)?;\n",
    ),
    replace(
        "ggml-tensor-size",
        GGML,
        1,
        "    let tensor_elems = dims.iter().product::<usize>();\n    let size_in_bytes = tensor_elems * ggml_dtype.type_size() / ggml_dtype.block_size();\n",
        TENSOR_SIZE,
    ),
    before(
        "ggml-tensor-once",
        GGML,
        "            tensors.insert(name, tensor);\n",
        "            reader.check_not_seen(&tensors, &name)?;\n",
    ),
    // Blocks from a caller: too few for the shape would be read out of bounds, and an unaligned address would panic.
    before(
        "blocks-of-tensor",
        GGML,
        "    let tensor_elems = dims.iter().product::<usize>();\n    let block_size",
        "    let raw_data: &[u8] = &crate::model_files::blocks_of_tensor(ggml_dtype, raw_data, &dims)?;\n",
    ),
    after(
        "blocks",
        "quantized/mod.rs",
        "    pub fn from_data(data: Cow<'_, [u8]>, device: &Device, dtype: GgmlDType) -> Result<Self> {\n        let data: &[u8] = &data;\n",
        "        let data: &[u8] = &crate::model_files::blocks(dtype, data)?;\n",
    ),
    // Importance matrices.
    after(
        "imatrix-path",
        IMATRIX,
        "pub fn load_imatrix<P: AsRef<Path>>(fname: P) -> Result<HashMap<String, Vec<f32>>> {\n",
        READ_IMATRIX,
    ),
    after(
        "imatrix-reader",
        IMATRIX,
        "    let mut cursor = Cursor::new(buffer);\n",
        "    let mut cursor = crate::model_files::FieldReader::new(&mut cursor)?;\n",
    ),
    before(
        "imatrix-name",
        IMATRIX,
        "        let mut name_buf = vec!",
        "        cursor.check_remaining(len, 1).map_err(|e| e.context(format!(\"name of entry {}\", i + 1)))?;\n",
    ),
    before(
        "imatrix-values",
        IMATRIX,
        "        let mut data = Vec::with_capacity(nval);\n",
        "        cursor.check_remaining(nval, 4).map_err(|e| e.context(format!(\"values of `{name}`\")))?;\n",
    ),
    // Safetensors: the crate detects invalid files, but its errors do not always name the location.
    replace(
        "safetensors-header",
        SAFETENSORS,
        6,
        "safetensors::SafeTensors::deserialize(",
        "crate::model_files::deserialize(",
    ),
    after(
        "safetensors-path",
        SAFETENSORS,
        "pub fn load<P: AsRef<Path>>(filename: P, device: &Device) -> Result<HashMap<String, Tensor>> {\n",
        LOAD_SAFETENSORS,
    ),
    replace(
        "safetensors-tensor",
        SAFETENSORS,
        1,
        "Ok((name, view.load(device)?))",
        "match view.load(device) {\n            Ok(tensor) => Ok((name, tensor)),\n            Err(error) => Err(crate::model_files::in_tensor(&name, error)),\n        }",
    ),
    replace(
        "safetensors-named-tensor",
        SAFETENSORS,
        2,
        "self.get(name)?.load(dev)\n",
        "let loaded = self.get(name)?.load(dev);\n        loaded.map_err(|error| crate::model_files::in_tensor(name, error))\n",
    ),
    replace(
        "safetensors-tensor-of-slice",
        SAFETENSORS,
        1,
        "self.safetensors.tensor(name)?.load(dev)\n",
        "let loaded = self.safetensors.tensor(name)?.load(dev);\n        loaded.map_err(|error| crate::model_files::in_tensor(name, error))\n",
    ),
];

const GGUF: &str = "quantized/gguf_file.rs";
const GGML: &str = "quantized/ggml_file.rs";
const IMATRIX: &str = "quantized/imatrix_file.rs";
const SAFETENSORS: &str = "safetensors.rs";

const READ_GGUF: &str = r#"        crate::model_files::read_fields("gguf", reader, Self::read_fields)
    }

    fn read_fields<R: std::io::Seek + std::io::Read>(
        reader: &mut crate::model_files::FieldReader<'_, R>,
    ) -> Result<Self> {
        use std::io::Seek;
"#;

const ALIGNMENT: &str = r#"        reader.field("metadata `general.alignment`");
        let value = metadata.get("general.alignment");
        let alignment = crate::model_files::checked_alignment(value, alignment)?;
"#;

const READ_GGML: &str = r#"        crate::model_files::read_fields("ggml", reader, |reader| Self::read_fields(reader, device))
    }

    fn read_fields<R: std::io::Seek + std::io::Read>(
        reader: &mut crate::model_files::FieldReader<'_, R>,
        device: &Device,
    ) -> Result<Content> {
"#;

const TENSOR_SIZE: &str = r#"    reader.field(format!("tensor `{name}`"));
    let size_in_bytes = crate::model_files::size_in_bytes(ggml_dtype, &dims)?;
    reader.check_remaining(size_in_bytes, 1)?;
"#;

const READ_IMATRIX: &str = r"    let path = fname.as_ref();
    read_imatrix(path).map_err(|error| crate::model_files::in_file(path, error))
}

fn read_imatrix<P: AsRef<Path>>(fname: P) -> Result<HashMap<String, Vec<f32>>> {
";

const LOAD_SAFETENSORS: &str = r"    let path = filename.as_ref();
    load_path(path, device).map_err(|error| crate::model_files::in_file(path, error))
}

fn load_path<P: AsRef<Path>>(filename: P, device: &Device) -> Result<HashMap<String, Tensor>> {
";
