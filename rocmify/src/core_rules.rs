//! The special rules for candle-core.

use crate::rules::{CrateRules, EVERY_FILE, Edit, Rule};

pub const CANDLE_CORE: CrateRules = CrateRules {
    name: "candle-core",
    cuda_only: &["cuda_backend/", "quantized/cuda.rs", "quantized/fast_mmq.rs", "quantized/fast_mmvq.rs"],
    left_alone: 4,
    rules: RULES,
    included_rules: INCLUDED_RULES,
    own_modules: "\n#[cfg(feature = \"rocm\")]\nmod quantized_rocm;\n#[cfg(feature = \"rocm\")]\npub mod rocm_backend;\n",
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
    Rule {
        name: "quantized-storage",
        file: "quantized/mod.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "#[cfg(not(feature = \"rocm\"))]\nmod rocm {",
            insert: "#[cfg(feature = \"rocm\")]\npub use crate::quantized_rocm as rocm;\n",
        },
    },
    Rule {
        name: "cuda-stream-guard-of-rocm-storage",
        file: "quantized/mod.rs",
        expect: 1,
        edit: Edit::After {
            anchor: "QStorage::Cuda(storage) => storage.device_ptr_with_guard(stream),\n",
            insert: "            QStorage::Rocm(_) => crate::bail!(\"a CUDA stream cannot guard ROCm storage\"),\n",
        },
    },
    Rule {
        name: "as-cuda-device-of-rocm",
        file: "device.rs",
        expect: 1,
        edit: Edit::After {
            anchor: "Self::Metal(_) => crate::bail!(\"expected a cuda device, got Metal\"),\n",
            insert: "            Self::Rocm(_) => crate::bail!(\"expected a cuda device, got rocm\"),\n",
        },
    },
    Rule {
        name: "as-rocm-device-of-cuda",
        file: "device.rs",
        expect: 1,
        edit: Edit::After {
            anchor: "Self::Metal(_) => crate::bail!(\"expected a rocm device, got Metal\"),\n",
            insert: "            Self::Cuda(_) => crate::bail!(\"expected a rocm device, got cuda\"),\n",
        },
    },
    Rule {
        name: "is-rocm-available",
        file: "device.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "    pub fn rocm_if_available(",
            insert: "    /// Whether a ROCm device can be used now: asks for a driver and a device, initialises neither.\n    \
                     pub fn is_rocm_available() -> bool {\n        crate::utils::rocm_is_available()\n    }\n\n",
        },
    },
    Rule {
        name: "ask-the-loader",
        file: "utils.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "pub fn rocm_is_available() -> bool {\n    cfg!(feature = \"rocm\")\n}",
            to: "/// Whether a ROCm device can be used now. Unlike its CUDA and Metal twins this asks the machine,\n\
                 /// not only whether the feature is compiled in.\n\
                 pub fn rocm_is_available() -> bool {\n    \
                 #[cfg(feature = \"rocm\")]\n    {\n        rocm_loader::is_available()\n    }\n    \
                 #[cfg(not(feature = \"rocm\"))]\n    {\n        false\n    }\n}",
        },
    },
    Rule {
        name: "copy-between-kinds-of-gpu",
        file: "tensor.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "                (Storage::Cpu(storage), Device::Cpu) => Storage::Cpu(storage.clone()),\n",
            insert: "                (Storage::Rocm(storage), Device::Cuda(cuda)) => {\n                    \
                     Storage::Cuda(cuda.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)\n                }\n                \
                     (Storage::Cuda(storage), Device::Rocm(rocm)) => {\n                    \
                     Storage::Rocm(rocm.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)\n                }\n                \
                     (Storage::Rocm(storage), Device::Metal(metal)) => {\n                    \
                     Storage::Metal(metal.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)\n                }\n                \
                     (Storage::Metal(storage), Device::Rocm(rocm)) => {\n                    \
                     Storage::Rocm(rocm.storage_from_cpu_storage_owned(storage.to_cpu_storage()?)?)\n                }\n",
        },
    },
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
    // Unmodified test files call this macro with four arguments: there the ROCm test is `name::rocm`,
    // because a macro cannot make up an identifier but can make a module.
    Rule {
        name: "test-device",
        file: "test_utils.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {\n",
            insert: "    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident, $test_rocm: ident) => {\n        \
                     $crate::test_device!(@without_rocm $fn_name, $test_cpu, $test_cuda, $test_metal);\n\n        \
                     #[cfg(feature = \"rocm\")]\n        #[test]\n        \
                     fn $test_rocm() -> Result<()> {\n            $fn_name(&Device::new_rocm(0)?)\n        }\n    };\n    \
                     ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {\n        \
                     $crate::test_device!(@without_rocm $fn_name, $test_cpu, $test_cuda, $test_metal);\n\n        \
                     #[cfg(feature = \"rocm\")]\n        mod $fn_name {\n            use super::*;\n\n            \
                     #[test]\n            fn rocm() -> Result<()> {\n                \
                     super::$fn_name(&Device::new_rocm(0)?)\n            }\n        }\n    };\n",
        },
    },
    Rule {
        name: "test-device-other-devices",
        file: "test_utils.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {\n        #[test]\n",
            to: "    (@without_rocm $fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {\n        #[test]\n",
        },
    },
];

const INCLUDED_RULES: &[Rule] = &[
    Rule {
        name: "reach-bail",
        file: "error.rs",
        expect: 1,
        edit: Edit::Before { anchor: "pub fn zip<T, U>(", insert: "pub(crate) use bail;\n\n" },
    },
    Rule {
        name: "call-bail",
        file: EVERY_FILE,
        expect: 257,
        edit: Edit::Replace { from: " crate::bail!", to: " crate::error::bail!" },
    },
    Rule {
        name: "import-bail",
        file: EVERY_FILE,
        expect: 2,
        edit: Edit::Replace { from: "use crate::{bail, ", to: "use crate::error::bail;\nuse crate::{" },
    },
    Rule {
        name: "reach-builder-arg",
        file: "cuda_backend/device.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "impl CudaFunc {\n    pub fn builder(",
            insert: "pub(crate) use builder_arg;\n\n",
        },
    },
    Rule {
        name: "hand-on-builder-arg",
        file: "cuda_backend/mod.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "use crate::{builder_arg as barg, ",
            to: "pub(crate) use device::builder_arg as barg;\nuse crate::{",
        },
    },
    Rule {
        name: "import-builder-arg",
        file: "quantized/cuda.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "use crate::{builder_arg as barg, ",
            to: "use crate::cuda_backend::barg;\nuse crate::{",
        },
    },
];
