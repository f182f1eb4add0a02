//! Part of a decoder that one device has: the whole, or that of a rank (tensor parallelism).
//!
//! Heads, the widths inside feed-forward layers and experts, and the vocabulary are divided. Queries, keys, values, gate
//! and up are divided by output features. The outputs of attention and of feed-forward layers are summed over the ranks.
//! If there are fewer heads of keys than ranks, neighboring ranks have the same ones.
use std::ops::Range;

use anyhow::{Result, ensure};
use candle_core::Tensor;
#[cfg(feature = "rocm")]
use candle_core::rocm::{
    GraphState,
    collective::{Communicator, ReduceOp},
};
#[cfg(feature = "rocm")]
use candle_nn::tensor_parallel;

use super::config::{DecoderConfig, QueryKeyNorm};
use super::roles::Role;

/// A range of rows of a tensor.
#[derive(Clone, Debug)]
pub struct TensorRows {
    /// Role of the tensor.
    pub role: Role,
    /// Rows to read.
    pub rows: Range<usize>,
    /// Number of rows that the tensor must have.
    pub total_rows: usize,
}

impl TensorRows {
    /// Selects all `rows` rows of a tensor.
    pub fn whole(role: Role, rows: usize) -> Self {
        Self { role, rows: 0..rows, total_rows: rows }
    }
}

/// Part of a decoder.
#[derive(Clone, Debug)]
pub struct Part {
    rank: usize,
    ranks: usize,
    /// Number of neighboring ranks that have the same heads of keys and values.
    key_sharers: usize,
    #[cfg(feature = "rocm")]
    communicator: Option<Communicator>,
}

impl Part {
    /// Returns the whole model.
    pub fn whole() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            key_sharers: 1,
            #[cfg(feature = "rocm")]
            communicator: None,
        }
    }

    /// Returns the part of a rank. The other ranks may be in this process or in others.
    #[cfg(feature = "rocm")]
    pub fn of_rank(communicator: &Communicator) -> Self {
        let (rank, ranks) = (communicator.rank(), communicator.world_size());
        Self { rank, ranks, key_sharers: 1, communicator: Some(communicator.clone()) }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of different parts of the heads of keys and values.
    pub fn key_parts(&self) -> usize {
        self.ranks / self.key_sharers
    }

    /// Returns true if the device has the whole model, and takes part in no operations between ranks.
    pub fn is_whole(&self) -> bool {
        #[cfg(feature = "rocm")]
        return self.communicator.is_none();
        #[cfg(not(feature = "rocm"))]
        true
    }

    /// Returns true for the first rank, which adds the biases of sums.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Returns the sizes of this part.
    ///
    /// # Errors
    /// Returns an error that names the size that the ranks cannot divide.
    pub fn divide(&mut self, config: DecoderConfig) -> Result<DecoderConfig> {
        let (mut own, ranks) = (config, self.ranks);
        if ranks == 1 {
            return Ok(own);
        }
        ensure!(
            own.qk_norm != Some(QueryKeyNorm::Rows),
            "norms of all heads of a row together cannot be divided among {ranks} GPUs; use one GPU"
        );
        ensure!(
            own.recurrent.is_none(),
            "layers with recurrent states cannot be divided among {ranks} GPUs; use one GPU"
        );
        ensure!(
            own.has_equal_layers() && own.layer_inputs.is_none() && !own.value_norm,
            "layers with different heads, a common cache or inputs of their own cannot be divided among {ranks} GPUs; use \
             one GPU"
        );
        own.heads = self.share(own.heads, "heads")?;
        (own.kv_heads, self.key_sharers) = match ranks.is_multiple_of(own.kv_heads) {
            true => (1, ranks / own.kv_heads),
            false => (self.share(own.kv_heads, "heads of keys and values")?, 1),
        };
        if own.experts.as_ref().is_none_or(|experts| experts.dense_layers.contains(&true)) {
            own.intermediate = self.share(own.intermediate, "elements inside the feed-forward layers")?;
        }
        if let Some(experts) = &mut own.experts {
            experts.intermediate = self.share(experts.intermediate, "elements inside an expert")?;
            let shared = experts.shared_intermediate;
            let shared = shared.map(|width| self.share(width, "elements inside the shared expert"));
            experts.shared_intermediate = shared.transpose()?;
        }
        Ok(own)
    }

    /// Returns the number of elements of each rank.
    ///
    /// # Errors
    /// Returns an error with the name `what` if the ranks cannot divide them.
    pub fn share(&self, size: usize, what: &str) -> Result<usize> {
        let ranks = self.ranks;
        ensure!(
            size.is_multiple_of(ranks),
            "{size} {what} cannot be divided among {ranks} GPUs; use a number of GPUs that divides {size}"
        );
        Ok(size / ranks)
    }

    /// Returns this rank's elements, of which each rank has `size`.
    pub fn own(&self, size: usize) -> Range<usize> {
        self.rank * size..(self.rank + 1) * size
    }

    /// Returns this rank's rows of tensors, given by their roles and their numbers of own rows. If there is a role `fused`,
    /// files store them as one tensor of this role.
    pub fn rows(&self, fused: Option<Role>, tensors: &[(Role, usize)]) -> Vec<TensorRows> {
        // The place among the distinct parts of a tensor, and their number.
        let place = |role| match role {
            Role::Key | Role::Value => (self.rank / self.key_sharers, self.key_parts()),
            _ => (self.rank, self.ranks),
        };
        let total: usize = tensors.iter().map(|(role, rows)| rows * place(*role).1).sum();
        let mut base = 0;
        let own = |&(role, rows): &(Role, usize)| {
            let (index, parts) = place(role);
            let first = base + index * rows;
            let (role, total_rows) = match fused {
                Some(fused) => {
                    base += rows * parts;
                    (fused, total)
                }
                None => (role, rows * parts),
            };
            TensorRows { role, rows: first..first + rows, total_rows }
        };
        tensors.iter().map(own).collect()
    }

    /// Returns this rank's rows of queries, keys and values of a tensor that has them in groups: the queries that share a head
    /// of keys, this head and that of values. This rank has so many heads of queries and of keys, `width` elements each.
    pub fn rows_of_groups(
        &self,
        role: Role,
        [heads, key_heads]: [usize; 2],
        width: usize,
    ) -> Vec<TensorRows> {
        let (all, groups) = (heads * self.ranks, key_heads * self.ranks / self.key_sharers);
        let (shared, first) = (all / groups, self.rank / self.key_sharers * key_heads);
        let row = |group: usize, place: usize| (group * (shared + 2) + place) * width;
        let queries = self.own(heads).map(|head| row(head / shared, head % shared));
        let others = |place: usize| (first..first + key_heads).map(move |group| row(group, place));
        let total_rows = groups * (shared + 2) * width;
        let piece = |first: usize| TensorRows { role, rows: first..first + width, total_rows };
        queries.chain(others(shared)).chain(others(shared + 1)).map(piece).collect()
    }

    /// Returns true if steps may be replayed as graphs. Ranks do not compare replays with steps without a graph, as known
    /// faults of graphs require, because all ranks would have to agree about the result.
    pub fn supports_graphs(&self) -> bool {
        #[cfg(feature = "rocm")]
        if let Some(communicator) = &self.communicator {
            let device = communicator.device().as_rocm_device();
            return device.is_ok_and(|device| device.graph_state() == GraphState::Enabled);
        }
        true
    }

    /// Returns the sum of the `x` of all ranks.
    ///
    /// # Errors
    /// Returns an error if the device or another rank fails.
    pub fn sum(&self, x: Tensor) -> candle_core::Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(communicator) = &self.communicator {
            return communicator.all_reduce(&x, ReduceOp::Sum);
        }
        Ok(x)
    }

    /// Returns the columns of all ranks' `x`.
    ///
    /// # Errors
    /// See [`Self::sum`].
    pub fn gather_columns(&self, x: Tensor) -> candle_core::Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(communicator) = &self.communicator {
            return tensor_parallel::gather_last_dim(&x, communicator);
        }
        Ok(x)
    }

    /// Returns the rows of tokens from a table of which each rank has `own` rows. `rows` returns those of tokens that are
    /// numbered from this rank's first one.
    ///
    /// # Errors
    /// See [`Self::sum`].
    pub fn look_up(
        &self,
        tokens: &Tensor,
        own: usize,
        rows: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(communicator) = &self.communicator {
            return tensor_parallel::look_up(tokens, own, communicator, rows);
        }
        let _ = own;
        rows(tokens)
    }
}
