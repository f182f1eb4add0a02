//! Image generation with Stable Diffusion 1.5, 2.1, XL, 3 and Flux, from folders in the layout
//! of diffusers and single-file checkpoints, and an HTTP worker.
//!
//! * [`model`]: loading of tokenizers, text encoders, UNet or transformer, and VAE
//! * [`schedulers`]: denoising schedules and solvers, with coefficients computed in f64 on the host
//! * [`pipeline`]: text-to-image, image-to-image and inpainting
//! * [`picture`]: RGB images and masks, decoded from PNG, JPEG and WebP, and scaled by `lanczos`
//!
//! Networks are built from blocks of candle-transformers. Modules that replace one of its networks say why.
//! Random numbers are generated on the host from the seed, so that a seed yields the same image on all devices.
//!
//! Files of the worker:
//!
//! | file or folder | subject |
//! |---|---|
//! | `run` | main program: loading and warm-up of the model |
//! | `arguments` | command-line arguments |
//! | `fetch` | download of models from the Hub |
//! | `queue/` | request queue and generator thread |
//! | `served` | a loaded model, as used by handlers |
//! | `models` | the models of a worker, one or several that are loaded on demand |
//! | `parameters` | validation of request parameters |
//! | `loras` | LoRA files and their tags in prompts |
//! | `controlnets` | ControlNets of requests |
//! | `hires` | second passes of requests |
//! | `safetensors_folder` | folders of `.safetensors` files that users provide |
//! | `images` | images in requests and responses |
//! | `routes` | HTTP routes |
//! | `jobs`, `callback` | job API, and callbacks with the results of jobs |
//! | `openai/` | OpenAI's image API |
//! | `sdapi/` | API of AUTOMATIC1111's web UI |
//! | `page/` | web page |
//! | `metrics` | Prometheus metrics |

pub mod arguments;
pub mod callback;
pub mod controlnets;
mod error;
pub mod fetch;
pub mod hires;
pub mod images;
pub mod jobs;
pub mod loras;
pub mod metrics;
pub mod model;
pub mod models;
pub mod openai;
pub mod page;
pub mod parameters;
pub mod picture;
pub mod pipeline;
pub mod queue;
pub mod routes;
pub mod run;
mod safetensors_folder;
pub mod schedulers;
pub mod sdapi;
pub mod served;

pub use error::{Check, Error, Result};
