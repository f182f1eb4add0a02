//! Pictures by Stable Diffusion: 1.5, 2.1, XL and their Turbo versions, from folders in diffusers' layout, and the worker
//! that serves them.
//!
//! * [`model`]: a folder's tokenizers, text encoders, UNet and VAE on a device
//! * [`schedulers`]: the steps from noise to a picture, their coefficients computed in f64 on the host
//! * [`pipeline`]: text to image, image to image, inpainting
//! * [`picture`]: RGB pictures and masks, to and from PNG, JPEG and WebP
//!
//! Building blocks are candle-transformers'. What is put together from them here, and not taken whole, says why.
//! All random numbers are drawn on the host from the seed, so that one seed means one picture on every device.
//!
//! Of the worker:
//!
//! | file or folder | subject |
//! |---|---|
//! | `run` | the life of the process, and from arguments to a model that is warm |
//! | `arguments` | the command line |
//! | `fetch` | the files of a model on the Hub |
//! | `queue/` | who waits, and the thread that makes pictures |
//! | `served` | the model as handlers know it |
//! | `parameters` | what clients ask for, checked |
//! | `images` | pictures in requests and answers |
//! | `routes` | everything that is answered |
//! | `jobs`, `callback` | the API of jobs, and where their ends are reported |
//! | `unfollowed` | jobs that nobody has begun to follow |
//! | `openai/` | OpenAI's API |
//! | `page/` | the page |
//! | `metrics` | what Prometheus reads |

pub mod arguments;
pub mod callback;
mod error;
pub mod fetch;
pub mod images;
pub mod jobs;
pub mod metrics;
pub mod model;
pub mod openai;
pub mod page;
pub mod parameters;
pub mod picture;
pub mod pipeline;
pub mod queue;
pub mod routes;
pub mod run;
pub mod schedulers;
pub mod served;
pub mod unfollowed;

pub use error::{Error, Result};
