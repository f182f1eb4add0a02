//! Weights of a T5 encoder: in the memory of the device, or read block by block for each new prompt.
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::t5::Config;

use super::super::layer_builder::LayerBuilder;
use super::super::weights::{Component, OnRead};
use super::network::{Block, OuterWeights};

/// Number of prompts whose states are kept if their computation reads the weights: 4 MB each for Flux.
const KEPT_PROMPTS: usize = 8;

/// Location of the weights of an encoder between prompts.
#[derive(Debug)]
pub(super) enum Source {
    /// In the memory of the device.
    Resident(Box<OuterWeights>, Vec<Block>),
    /// In the file.
    Streamed {
        weights: Component,
        dtype: DType,
        /// States of the last prompts, the oldest first.
        kept: Mutex<VecDeque<(String, Tensor)>>,
    },
}

/// Weights during the computation of prompts.
pub(super) enum OpenSource<'a> {
    Resident(&'a OuterWeights, &'a [Block]),
    Streamed(LayerBuilder<'static>, &'a Config),
}

/// Weights that are borrowed from those in memory, or were read.
pub(super) enum WeightsRef<'a, T> {
    Borrowed(&'a T),
    Owned(T),
}

impl<T> Deref for WeightsRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(weights) => weights,
            Self::Owned(weights) => weights,
        }
    }
}

impl Source {
    /// Loads all weights.
    pub fn resident(
        c: &Config,
        weights: &Component,
        dtype: DType,
        device: &Device,
        on_read: OnRead,
    ) -> Result<Self> {
        let vb = LayerBuilder::open(weights, dtype, device, on_read);
        let outer = OuterWeights::new(c, &vb)?;
        let blocks = (0..c.num_layers).map(|i| Block::at(c, i, &vb)).collect::<Result<_>>()?;
        Ok(Self::Resident(Box::new(outer), blocks))
    }

    /// Loads nothing.
    pub fn streamed(weights: Component, dtype: DType) -> Self {
        Self::Streamed { weights, dtype, kept: Mutex::default() }
    }

    /// Begins to read the weights, if they are not in memory.
    pub fn open<'a>(&'a self, c: &'a Config, device: &Device) -> OpenSource<'a> {
        match self {
            Self::Resident(outer, blocks) => OpenSource::Resident(outer, blocks),
            Self::Streamed { weights, dtype, .. } => {
                OpenSource::Streamed(LayerBuilder::open(weights, *dtype, device, Arc::new(|_| ())), c)
            }
        }
    }

    /// Returns the states of prompts (prompts, tokens, width), which `compute` returns one by one. Those of streamed weights
    /// are kept for later requests.
    ///
    /// # Errors
    /// Returns the error of `compute`, or the device fails.
    pub fn encoded(
        &self,
        prompts: &[&str],
        compute: impl FnOnce(&[&str]) -> crate::Result<Vec<Tensor>>,
    ) -> crate::Result<Tensor> {
        let Self::Streamed { kept, .. } = self else { return Ok(Tensor::stack(&compute(prompts)?, 0)?) };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<&str> = Vec::new();
        for prompt in prompts {
            if !missing.contains(prompt) && kept.iter().all(|(known, _)| known != prompt) {
                missing.push(prompt);
            }
        }
        if !missing.is_empty() {
            let computed = compute(&missing)?;
            kept.extend(missing.into_iter().map(str::to_owned).zip(computed));
        }
        let known = |prompt: &&str| kept.iter().find(|(known, _)| known == prompt).map(|(_, states)| states);
        let states = Tensor::stack(&prompts.iter().filter_map(known).collect::<Vec<_>>(), 0)?;
        let surplus = kept.len().saturating_sub(KEPT_PROMPTS);
        kept.drain(..surplus);
        Ok(states)
    }
}

impl<'a> OpenSource<'a> {
    /// Returns the weights other than those of blocks.
    ///
    /// # Errors
    /// The weights cannot be read, or the device is out of memory.
    pub fn outer(&self) -> Result<WeightsRef<'a, OuterWeights>> {
        match self {
            Self::Resident(outer, _) => Ok(WeightsRef::Borrowed(outer)),
            Self::Streamed(vb, c) => Ok(WeightsRef::Owned(OuterWeights::new(c, vb)?)),
        }
    }

    /// Returns a block by its index.
    ///
    /// # Errors
    /// As for [`Self::outer`].
    pub fn block(&self, index: usize) -> Result<WeightsRef<'a, Block>> {
        match self {
            Self::Resident(_, blocks) => Ok(WeightsRef::Borrowed(&blocks[index])),
            Self::Streamed(vb, c) => Ok(WeightsRef::Owned(Block::at(c, index, vb)?)),
        }
    }
}
