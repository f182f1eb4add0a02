//! Number of kernels that networks launch on the software GPU, without products and convolutions of libraries.
#![cfg(feature = "rocm-emulator")]
mod tiny_model;

use candle_core::{DType, Tensor};
use sd_worker::model::{LoadOptions, Model};
use tiny_model::published::{V1, configs};
use tiny_model::{Outcome, write_configs};

#[test]
fn networks_take_few_launches() -> Outcome {
    let device = tiny_model::software_gpu()?;
    let folder = tempfile::tempdir()?;
    write_configs(folder.path(), &configs(V1))?;
    let model = Model::load(folder.path(), &device, LoadOptions::default(), |_| ())?;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &device)?.to_dtype(DType::F16);
    let latents = random(&[2, 4, 16, 16])?;
    let unet = model.unet()?;
    let text = random(&[2, 16, unet.config().cross_attention_dim])?;
    let rocm = device.as_rocm_device()?;
    // The first step loads kernels.
    let mut launches = [0; 2];
    for _ in 0..2 {
        let before = rocm.kernels_launched();
        unet.forward(&latents, &[500.0], &text, None)?;
        launches[0] = rocm.kernels_launched() - before;
        let before = rocm.kernels_launched();
        model.vae.decode(&latents.narrow(0, 0, 1)?, &|| Ok(()))?;
        launches[1] = rocm.kernels_launched() - before;
    }
    println!("a step of the UNet takes {} launches, the decoder {}", launches[0], launches[1]);
    assert!(launches[0] <= 146 && launches[1] <= 38, "{launches:?}");
    Ok(())
}
