//! Loading of latent attention.
use anyhow::Result;

use super::{Matrix, Piece, Weights};
use crate::model::config::LatentConfig;
use crate::model::config::NormKind;
use crate::model::latent::{Expansion, LatentProjections};
use crate::model::layers::Linear;
use crate::model::part::TensorRows;
use crate::model::roles::Role;

impl Weights<'_> {
    /// Loads the projections of a layer, whose states are `hidden` elements wide. `kind` is the kind of the norms and their epsilon.
    pub fn latent_projections(
        &mut self,
        layer: usize,
        config: LatentConfig,
        [hidden, heads]: [usize; 2],
        kind: (NormKind, f64),
    ) -> Result<LatentProjections> {
        let at = Some(layer);
        let LatentConfig { rank, plain, rotated, value, .. } = config;
        let queries = heads * (plain + rotated);
        let linear = |this: &mut Self, role, rows, width| {
            this.linear(at, &[TensorRows::whole(role, rows)], width, false)
        };
        // Projections to heads are divided among ranks.
        let linear_of_rank = |this: &mut Self, role, rows, width| {
            let rows = this.part.rows(None, &[(role, rows)]);
            this.linear(at, &rows, width, false)
        };
        let (query_down, query) = match config.query_rank {
            Some(rank) => {
                let down = linear(self, Role::QueryDown, rank, hidden)?;
                let norm = self.norm(at, Role::QueryDownNorm, rank, kind)?;
                (Some((down, norm)), linear_of_rank(self, Role::QueryUp, queries, rank)?)
            }
            None => (None, linear_of_rank(self, Role::Query, queries, hidden)?),
        };
        let down = linear(self, Role::LatentDown, rank + rotated, hidden)?;
        let norm = self.norm(at, Role::LatentNorm, rank, kind)?;
        let keys = format!("blk.{layer}.attn_k_b.weight");
        let expansion = match self.prefix.is_none() && self.files.location(&keys).is_ok() {
            true => self.separate_expansion(layer, keys, config, heads)?,
            false => Expansion::Joined(linear_of_rank(self, Role::LatentUp, heads * (plain + value), rank)?),
        };
        Ok(LatentProjections { query_down, query, down, norm, expansion, heads, config })
    }

    /// Loads the expansion of GGUF files. The matrices of keys are transposed, which blocks cannot be, so that they become
    /// floats.
    fn separate_expansion(
        &mut self,
        layer: usize,
        keys: String,
        LatentConfig { rank, plain, value, .. }: LatentConfig,
        heads: usize,
    ) -> Result<Expansion> {
        let all = heads * self.part.ranks();
        self.check(&keys, &[all, rank, plain])?;
        let dtype = self.matrices.unwrap_or(self.dtype);
        let keys = Piece::rows(keys, self.part.own(heads * rank), plain);
        let key = self.floats(&[keys], &[heads, rank, plain], dtype)?;
        let key = key.transpose(1, 2)?.contiguous()?.reshape((heads * plain, rank))?;
        let values = format!("blk.{layer}.attn_v_b.weight");
        self.check(&values, &[all, value, rank])?;
        let values = Piece::rows(values, self.part.own(heads * value), rank);
        let values = self.matrix(&[values], &[heads * value, rank])?;
        let linear = |matrix| Linear::new(matrix, None, self.dtype);
        Ok(Expansion::Separate(linear(Matrix::Float(key)), linear(values)))
    }
}
