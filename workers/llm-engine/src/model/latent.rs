//! Latent attention: keys and values of all heads are projections of one short vector.
//!
//! The vector is expanded before the cache, so that the cache holds plain heads. The rotated elements of keys, which all heads
//! share, come first in each head, and values are padded to the width of keys.
use candle_core::{D, Result, Tensor};

use super::config::LatentConfig;
use super::layers::{FusedWith, Linear, Norm};

/// Projections from the vector to keys and values.
pub enum Expansion {
    /// Keys and values of each head in turn.
    Joined(Linear),
    /// Keys, and values.
    Separate(Linear, Linear),
}

/// Query, key and value projections.
pub struct LatentProjections {
    /// Projection to the vector of queries and its norm, if there is one.
    pub query_down: Option<(Linear, Norm)>,
    /// Projection to queries.
    pub query: Linear,
    /// Projection to the vector of keys and values, and to the rotated elements of keys.
    pub down: Linear,
    /// Norm of the vector.
    pub norm: Norm,
    /// Projections to keys and values.
    pub expansion: Expansion,
    /// Number of heads.
    pub heads: usize,
    /// Widths.
    pub config: LatentConfig,
}

impl LatentProjections {
    /// Maps (rows, in) to queries, keys and values, (rows, heads · width) each, of which the first elements of a head are to
    /// be rotated.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, (x, with): (&Tensor, FusedWith)) -> Result<[Tensor; 3]> {
        let LatentConfig { rank, plain, rotated, value, .. } = self.config;
        let (rows, heads, last) = (x.dim(0)?, self.heads, D::Minus1);
        let query = match &self.query_down {
            Some((down, norm)) => self.query.forward(&norm.forward(&down.forward_fused(x, with)?)?)?,
            None => self.query.forward_fused(x, with)?,
        };
        let query = query.reshape((rows, heads, plain + rotated))?;
        let query = Tensor::cat(&[query.narrow(last, plain, rotated)?, query.narrow(last, 0, plain)?], last)?;
        let down = self.down.forward_fused(x, with)?;
        let shared = down.narrow(last, rank, rotated)?.unsqueeze(1)?.broadcast_as((rows, heads, rotated))?;
        let latent = self.norm.forward(&down.narrow(last, 0, rank)?.contiguous()?)?;
        let [key, values] = match &self.expansion {
            Expansion::Joined(both) => {
                let both = both.forward(&latent)?.reshape((rows, heads, plain + value))?;
                [both.narrow(last, 0, plain)?, both.narrow(last, plain, value)?]
            }
            Expansion::Separate(key, values) => [
                key.forward(&latent)?.reshape((rows, heads, plain))?,
                values.forward(&latent)?.reshape((rows, heads, value))?,
            ],
        };
        let key = Tensor::cat(&[&shared, &key], last)?;
        let values = values.pad_with_zeros(last, 0, plain + rotated - value)?;
        Ok([query.flatten_from(1)?, key.flatten_from(1)?, values.flatten_from(1)?])
    }

    /// Removes the padding of attention's output (rows, heads · width).
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn without_padding(&self, out: &Tensor) -> Result<Tensor> {
        let out = out.reshape((out.dim(0)?, self.heads, ()))?;
        out.narrow(D::Minus1, 0, self.config.value)?.flatten_from(1)
    }
}
