//! Number of kernels that networks launch on the software GPU, without products and convolutions of libraries.
#![cfg(feature = "rocm-emulator")]
mod tiny_model;

use candle_core::{DType, Device, Tensor};
use sd_worker::model::{LoadOptions, Model};
use sd_worker::pipeline::{Pipeline, Request};
use tiny_model::published::{V1, configs, request};
use tiny_model::together::Together;
use tiny_model::{Outcome, write_configs};

/// Returns a software GPU with a stream of its own. Devices that share a stream also share its count of launches, and other
/// tests run at the same time.
fn own_device() -> Outcome<Device> {
    tiny_model::software_gpu()?;
    Ok(Device::new_rocm_with_stream(0)?)
}

#[test]
fn networks_take_few_launches() -> Outcome {
    let device = own_device()?;
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
        model.vae()?.decode(&latents.narrow(0, 0, 1)?, &|| Ok(()))?;
        launches[1] = rocm.kernels_launched() - before;
    }
    println!("a step of the UNet takes {} launches, the decoder {}", launches[0], launches[1]);
    assert!(launches[0] <= 146 && launches[1] <= 38, "{launches:?}");
    Ok(())
}

/// Requests that share steps launch the kernels of the network once.
#[test]
fn shared_steps_launch_the_network_once() -> Outcome {
    let device = own_device()?;
    let folder = tempfile::tempdir()?;
    write_configs(folder.path(), &configs(V1))?;
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let pipeline = Pipeline::new(Model::load(folder.path(), &device, options, |_| ())?);
    let rocm = device.as_rocm_device()?;
    let requests = [1, 2, 3].map(|seed| Request { seeds: vec![seed], ..request(&pipeline) });
    let mut alone = Vec::new();
    let mut launches = [0; 2];
    // The first request loads kernels.
    for i in [0, 0, 1, 2] {
        let before = rocm.kernels_launched();
        let latents = pipeline.latents(&requests[i], &mut |_| std::ops::ControlFlow::Continue(()))?;
        launches[0] = rocm.kernels_launched() - before;
        alone.push(latents);
    }
    alone.remove(0);
    let waiting = requests.map(|request| (0, request));
    let mut pictures = Vec::new();
    for latents in &alone {
        let before = rocm.kernels_launched();
        pictures.push(pipeline.decode(latents)?);
        launches[1] += rocm.kernels_launched() - before;
    }
    let before = rocm.kernels_launched();
    let together = Together::run(&pipeline, &waiting, None)?;
    let shared = rocm.kernels_launched() - before - launches[1];
    println!("4 steps take {} launches for one request, and {shared} for three", launches[0]);
    assert_eq!(together.most(), [3, 3, 3]);
    assert!(shared < 2 * launches[0], "{shared} {launches:?}");
    for (i, expected) in pictures.iter().enumerate() {
        let most = together.levels(i, std::slice::from_ref(expected))?;
        assert!(most <= 1, "request {i}: {most} levels away");
    }
    Ok(())
}
