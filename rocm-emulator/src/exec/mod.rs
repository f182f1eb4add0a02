//! Runs kernels: workgroups on the host's cores, waves in lockstep, lanes as arrays.
pub mod wave;
