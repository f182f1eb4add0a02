//! Special rules for candle-core.

use crate::mxfp4_rules::MXFP4_RULES;
use crate::operation_rules::OPERATION_RULES;
use crate::reader_rules::READER_RULES;
use crate::rules::{CrateRules, EVERY_FILE, Edit, OwnModule, Rule, after, before, replace};

/// Rules of candle-core.
pub const CANDLE_CORE: CrateRules = CrateRules {
    name: "candle-core",
    cuda_only: &["cuda_backend/", "quantized/cuda.rs", "quantized/fast_mmq.rs", "quantized/fast_mmvq.rs"],
    // `test_device!`, which the rules below handle, and an error of the Metal stub that names CUDA.
    left_alone: 4,
    rules: RULES,
    mending_rules: &[READER_RULES, OPERATION_RULES, MXFP4_RULES],
    included_rules: INCLUDED_RULES,
    own_modules: &[
        OwnModule { name: "model_files", public: false, rocm_only: false },
        OwnModule { name: "mxfp4", public: false, rocm_only: false },
        OwnModule { name: "quantized_rocm", public: false, rocm_only: true },
        OwnModule { name: "rocm_backend", public: true, rocm_only: true },
        OwnModule { name: "sizes", public: false, rocm_only: false },
    ],
};

const RULES: &[Rule] = &[
    Rule {
        name: "stub-storage",
        file: "dummy_cuda_backend.rs",
        expect: 1,
        edit: Edit::TwinFile("dummy_rocm_backend.rs"),
    },
    Rule {
        name: "stub-quantized-storage",
        file: "quantized/dummy_cuda.rs",
        expect: 1,
        edit: Edit::TwinFile("quantized/dummy_rocm.rs"),
    },
    before(
        "quantized-storage",
        "quantized/mod.rs",
        "#[cfg(not(feature = \"rocm\"))]\nmod rocm {",
        "#[cfg(feature = \"rocm\")]\npub mod rocm {\n    pub use crate::quantized_rocm::*;\n}\n",
    ),
    // candle-nn's quantized products need the storage.
    before(
        "quantized-storage-for-layers",
        "quantized/mod.rs",
        "    pub fn storage_size_in_bytes(&self) -> usize {\n        self.storage.size_in_bytes()\n",
        "    /// The blocks, if they are on a ROCm device.\n    #[cfg(feature = \"rocm\")]\n    pub fn rocm_storage(&self) -> Option<&rocm::QRocmStorage> {\n        match &self.storage {\n            QStorage::Rocm(storage) => Some(storage),\n            _ => None,\n        }\n    }\n\n",
    ),
    after(
        "cuda-stream-guard-of-rocm-storage",
        "quantized/mod.rs",
        "QStorage::Cuda(storage) => storage.device_ptr_with_guard(stream),\n",
        "            QStorage::Rocm(_) => crate::bail!(\"a CUDA stream cannot guard ROCm storage\"),\n",
    ),
    after(
        "as-cuda-device-of-rocm",
        "device.rs",
        "Self::Metal(_) => crate::bail!(\"expected a cuda device, got Metal\"),\n",
        "            Self::Rocm(_) => crate::bail!(\"expected a cuda device, got rocm\"),\n",
    ),
    after(
        "as-rocm-device-of-cuda",
        "device.rs",
        "Self::Metal(_) => crate::bail!(\"expected a rocm device, got Metal\"),\n",
        "            Self::Cuda(_) => crate::bail!(\"expected a rocm device, got cuda\"),\n",
    ),
    before("is-rocm-available", "device.rs", "    pub fn rocm_if_available(", IS_ROCM_AVAILABLE),
    replace(
        "ask-the-loader",
        "utils.rs",
        1,
        "pub fn rocm_is_available() -> bool {\n    cfg!(feature = \"rocm\")\n}\n",
        ASK_THE_LOADER,
    ),
    before(
        "copy-between-kinds-of-gpu",
        "tensor.rs",
        "                (Storage::Cpu(storage), Device::Cpu) => Storage::Cpu(storage.clone()),\n",
        COPY_BETWEEN_KINDS_OF_GPU,
    ),
    Rule {
        name: "load-narrow-floats",
        file: "safetensors.rs",
        expect: 2,
        edit: Edit::ArmBody {
            pattern: "Device::Cuda(device)",
            body: "Storage::Rocm(device.storage_from_raw_bytes(data, dtype)?)",
        },
    },
    Rule {
        name: "sort",
        file: "sort.rs",
        expect: 1,
        edit: Edit::MethodBody {
            owner: "ArgSort",
            method: "cuda_fwd",
            body: "crate::rocm_backend::arg_sort(storage, layout, self.asc, self.last_dim)",
        },
    },
    // A scan instead of a product with a triangular matrix, unless gradients are tracked.
    before(
        "cumsum",
        "tensor.rs",
        "        let n_axis = self.dim(dim)?;\n        let triu = Tensor::triu2(",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(sums) = crate::rocm_backend::cumsum(self, dim)? {\n            return Ok(sums);\n        }\n",
    ),
    // Scales sums before rounding, in one launch: f16 overflows only if the result does.
    before(
        "mean-keepdim",
        "tensor.rs",
        "        self.sum_impl(mean_dims, true)? * scale\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(mean) = crate::rocm_backend::scaled_sum(self, &mean_dims, scale)? {\n            return Ok(mean);\n        }\n",
    ),
    before(
        "mean",
        "tensor.rs",
        "        self.sum_impl(mean_dims, false)? * scale\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(mean) = crate::rocm_backend::scaled_sum(self, &mean_dims, scale)? {\n            return mean.squeeze_dims(&mean_dims);\n        }\n",
    ),
    before(
        "mean-all",
        "tensor.rs",
        "        self.sum_all()? / self.elem_count() as f64\n",
        "        #[cfg(feature = \"rocm\")]\n        if self.device().is_rocm() && self.dtype().is_float() {\n            return self.mean((0..self.rank()).collect::<Vec<_>>());\n        }\n",
    ),
    before(
        "variance",
        "tensor.rs",
        "        let mean = self.mean_keepdim(dim)?;\n        let squares = ",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(variance) = crate::rocm_backend::variance(self, dim)? {\n            return Ok(variance);\n        }\n",
    ),
    // One launch instead of two with scalars that are copied to the device.
    replace(
        "clamp",
        "tensor.rs",
        1,
        "        self.maximum(min)?.minimum(max)\n",
        "        let (min, max) = (min.to_tensor_scalar()?, max.to_tensor_scalar()?);\n        #[cfg(feature = \"rocm\")]\n        if let Some(clamped) = crate::rocm_backend::clamp(self, &min, &max)? {\n            return Ok(clamped);\n        }\n        self.maximum(min)?.minimum(max)\n",
    ),
    after(
        "clamp-scalars",
        "scalar.rs",
        "pub trait TensorOrScalar {\n    fn to_tensor_scalar(self) -> Result<TensorScalar>;\n}\n",
        "\nimpl TensorOrScalar for TensorScalar {\n    fn to_tensor_scalar(self) -> Result<TensorScalar> {\n        Ok(self)\n    }\n}\n",
    ),
    // One launch instead of a fill for each side and a concatenation.
    before(
        "pad-with-zeros",
        "tensor.rs",
        "        if left == 0 && right == 0 {\n            Ok(self.clone())\n        } else if left == 0 {\n            let dim = dim.to_index(self.shape(), \"pad_with_zeros\")?;\n",
        "        #[cfg(feature = \"rocm\")]\n        if left + right > 0 {\n            let dim = dim.to_index(self.shape(), \"pad_with_zeros\")?;\n            if let Some(padded) = crate::rocm_backend::pad_with_zeros(self, dim, left, right)? {\n                return Ok(padded);\n            }\n        }\n",
    ),
    before(
        "norm",
        "tensor.rs",
        "        self.sqr().and_then(|x| x.sum_all()).and_then(|x| x.sqrt())\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(norm) = crate::rocm_backend::norm(self)? {\n            return Ok(norm);\n        }\n",
    ),
    // One launch instead of a launch and a copy for each group.
    before(
        "groups-of-conv1d",
        "conv.rs",
        "        if groups == 1 {\n            self.conv1d_single_group(kernel, &params)",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(all) = crate::rocm_backend::grouped_conv1d(self, kernel, &params, groups)? {\n            return Ok(all);\n        }\n",
    ),
    before(
        "groups-of-conv2d",
        "conv.rs",
        "        if groups == 1 {\n            self.conv2d_single_group(kernel, &params)",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(all) = crate::rocm_backend::grouped_conv2d(self, kernel, &params, groups)? {\n            return Ok(all);\n        }\n",
    ),
    before(
        "groups-of-conv-transpose1d",
        "conv.rs",
        "        if groups == 1 {\n            self.conv_transpose1d_single_group(kernel, &params)",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(all) = crate::rocm_backend::grouped_conv_transpose1d(self, kernel, &params, groups)? {\n            return Ok(all);\n        }\n",
    ),
    before(
        "gradients-of-conv-transpose2d",
        "conv.rs",
        "        let storage = self.storage().conv_transpose2d(",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(all) = crate::rocm_backend::grouped_conv_transpose2d(self, kernel, &params)? {\n            return Ok(all);\n        }\n",
    ),
    // One launch instead of one for each tensor.
    before(
        "cat",
        "tensor_cat.rs",
        "        let mut dst_o = 0;\n        for arg in args.iter() {\n            let arg = arg.as_ref();\n            let arg_dims",
        "        #[cfg(feature = \"rocm\")]\n        if crate::rocm_backend::cat(args, dim, &mut storage)? {\n            return Ok(crate::tensor::from_storage(storage, shape, op, false));\n        }\n",
    ),
    replace("narrow-uniform-numbers", "device.rs", 1, UNIFORM_BY_WAY_OF_F32, UNIFORM),
    replace("narrow-normal-numbers", "device.rs", 1, NORMAL_BY_WAY_OF_F32, NORMAL),
    replace(
        "test-device",
        "test_utils.rs",
        1,
        "    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {\n        #[test]\n",
        TEST_DEVICE,
    ),
    // Our own modules import the macro by this path in both forms of the tree.
    before(
        "reach-bail",
        "error.rs",
        "pub fn zip<T, U>(",
        "#[allow(unused_imports)]\npub(crate) use bail;\n\n",
    ),
];

/// ROCm generates f16 and bf16 directly: one launch, and rounding never reaches the upper bound.
const UNIFORM_BY_WAY_OF_F32: &str = r"                if dtype == DType::F16 || dtype == DType::BF16 {
                    let storage = device.rand_uniform(shape, DType::F32, lo, up)?;
                    Storage::Rocm(storage).to_dtype(&crate::Layout::contiguous(shape), dtype)
                } else {
                    let storage = device.rand_uniform(shape, dtype, lo, up)?;
                    Ok(Storage::Rocm(storage))
                }
";
const UNIFORM: &str = r"                let storage = device.rand_uniform(shape, dtype, lo, up)?;
                Ok(Storage::Rocm(storage))
";

const NORMAL_BY_WAY_OF_F32: &str = r"                if dtype == DType::F16 || dtype == DType::BF16 {
                    let storage = device.rand_normal(shape, DType::F32, mean, std)?;
                    Storage::Rocm(storage).to_dtype(&crate::Layout::contiguous(shape), dtype)
                } else {
                    let storage = device.rand_normal(shape, dtype, mean, std)?;
                    Ok(Storage::Rocm(storage))
                }
";
const NORMAL: &str = r"                let storage = device.rand_normal(shape, dtype, mean, std)?;
                Ok(Storage::Rocm(storage))
";

const IS_ROCM_AVAILABLE: &str = r"    /// Returns true if a ROCm device is usable: it needs a driver, a device and the runtime. Creates no context.
    pub fn is_rocm_available() -> bool {
        crate::utils::rocm_is_available()
    }

";

const ASK_THE_LOADER: &str = r#"/// Returns true if a ROCm device is usable. Unlike its counterparts for CUDA and Metal, this also checks the machine, not
/// only whether the feature is compiled in.
pub fn rocm_is_available() -> bool {
    #[cfg(feature = "rocm")]
    let available = rocm_loader::is_available();
    #[cfg(not(feature = "rocm"))]
    let available = false;
    available
}
"#;

/// Copies between two kinds of GPU go through the host.
const COPY_BETWEEN_KINDS_OF_GPU: &str = r"                (Storage::Rocm(storage), Device::Cuda(cuda)) => {
                    Storage::Cuda(cuda.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)
                }
                (Storage::Cuda(storage), Device::Rocm(rocm)) => {
                    Storage::Rocm(rocm.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)
                }
                (Storage::Rocm(storage), Device::Metal(metal)) => {
                    Storage::Metal(metal.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)
                }
                (Storage::Metal(storage), Device::Rocm(rocm)) => {
                    Storage::Rocm(rocm.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)
                }
";

/// Unmodified test files call the macro with four names. A macro cannot create a fifth identifier, but it can create a
/// module, so the ROCm test is `name::rocm`.
const TEST_DEVICE: &str = r#"    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident, $test_rocm: ident) => {
        $crate::test_device!(@other_devices $fn_name, $test_cpu, $test_cuda, $test_metal);

        #[cfg(feature = "rocm")]
        #[test]
        fn $test_rocm() -> Result<()> {
            $fn_name(&Device::new_rocm(0)?)
        }
    };
    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {
        $crate::test_device!(@other_devices $fn_name, $test_cpu, $test_cuda, $test_metal);

        #[cfg(feature = "rocm")]
        mod $fn_name {
            use super::*;

            #[test]
            fn rocm() -> Result<()> {
                super::$fn_name(&Device::new_rocm(0)?)
            }
        }
    };
    (@other_devices $fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {
        #[test]
"#;

/// Macros exported by an included tree cannot be named from the crate's root. These rules give them a path through the
/// module that defines them.
const INCLUDED_RULES: &[Rule] = &[
    replace("call-bail", EVERY_FILE, 260, " crate::bail!", " crate::error::bail!"),
    replace("import-bail", EVERY_FILE, 2, "use crate::{bail, ", "use crate::error::bail;\nuse crate::{"),
    before(
        "reach-builder-arg",
        "cuda_backend/device.rs",
        "impl CudaFunc {\n    pub fn builder(",
        "pub(crate) use builder_arg;\n\n",
    ),
    replace(
        "hand-on-builder-arg",
        "cuda_backend/mod.rs",
        1,
        "use crate::{builder_arg as barg, ",
        "pub(crate) use device::builder_arg as barg;\nuse crate::{",
    ),
    replace(
        "import-builder-arg",
        "quantized/cuda.rs",
        1,
        "use crate::{builder_arg as barg, ",
        "use crate::cuda_backend::barg;\nuse crate::{",
    ),
];
