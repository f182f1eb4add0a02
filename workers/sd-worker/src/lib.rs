//! Pictures by Stable Diffusion.
