//! A decoder as the model of an engine.
use std::result::Result as StdResult;
use std::sync::Arc;

use candle_core::{Tensor, bail};

use super::mtp_steps::MtpSteps;
use super::pictures::PictureFeatures;
use super::{Decoder, Task};
use crate::model::adapter::AdapterTargets;
use crate::model::cache_dtype::CacheDType;
use crate::model::graphs::ReplayableModel;
use crate::model::vision::ImageProcessor;
use crate::step::{BLOCK_SIZE, Capacity, PartialWork, Step, StepModel, Tasks};

impl StepModel for Decoder {
    fn capacity(&self) -> Capacity {
        let blocks = match self.task {
            Task::Generate => self.cache.blocks(),
            Task::Embed | Task::Score => self.config.context.div_ceil(BLOCK_SIZE),
        };
        Capacity {
            vocabulary: self.embedding.vocabulary().unwrap_or(0) * self.part.ranks(),
            context: self.config.context.min(blocks * BLOCK_SIZE),
            blocks,
            states: self.states.slots().filter(|_| self.task == Task::Generate),
        }
    }

    fn tasks(&self) -> Tasks {
        if self.task == Task::Score {
            return Tasks { generate: false, embed: false, classify: true, width: None };
        }
        let width = Some(self.embedding_head.width());
        Tasks { generate: self.task == Task::Generate, width, ..Tasks::default() }
    }

    fn cache_dtype(&self) -> Option<CacheDType> {
        (self.task == Task::Generate).then_some(self.cache.types().elements)
    }

    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        self.own_adapter_targets().filter(|_| self.part.is_whole())
    }

    fn image_processor(&self) -> StdResult<Arc<ImageProcessor>, &'static str> {
        self.vision.as_ref().map(|vision| vision.processor().clone()).map_err(|reason| *reason)
    }

    fn step(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        if self.task != Task::Generate {
            bail!("the model only computes embeddings or scores")
        }
        self.capacity().validate(step)?;
        if step.tokens.is_empty() {
            return self.no_logits();
        }
        let pictures = match (&mut self.vision, step.pictures.is_empty()) {
            (_, true) => None,
            (Ok(vision), _) => Some(PictureFeatures::of(step, vision, &self.device)?),
            (Err(reason), _) => bail!("a step with a picture for a model that {reason}"),
        };
        let mut graphs = std::mem::take(&mut self.graphs);
        let replayed = graphs.step(self, step);
        self.graphs = graphs;
        if let Some(logits) = replayed? {
            return Ok(logits);
        }
        let inputs = self.inputs(step);
        self.compute_with(step, (&inputs.upload(&self.device)?, inputs.lengths), pictures)
    }

    fn has_mtp(&self) -> bool {
        self.mtp.is_some()
    }

    fn mtp_step(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        self.capacity().validate_rows(step)?;
        step.validate_kept(self.cache.blocks() * BLOCK_SIZE)?;
        if step.tokens.is_empty() {
            return self.no_logits();
        }
        let Some(head) = &mut self.mtp else { bail!("the model has no MTP head") };
        let mut graphs = std::mem::take(&mut head.graphs);
        let steps = MtpSteps(self);
        let computed = graphs.step(&steps, step).and_then(|replayed| match replayed {
            Some(logits) => Ok(logits),
            None => {
                let inputs = steps.inputs(step);
                steps.compute(step, &inputs.upload(&steps.0.device)?, inputs.lengths)
            }
        });
        self.mtp.iter_mut().for_each(|head| head.graphs = std::mem::take(&mut graphs));
        computed
    }

    fn check(&mut self) -> candle_core::Result<()> {
        self.device.synchronize()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        self.cache.copy_blocks(pairs)
    }

    fn copy_states(&mut self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        self.states.copy(pairs)
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> candle_core::Result<Tensor> {
        if self.task == Task::Score {
            bail!("a reranker computes no embeddings")
        }
        self.embed_prompts(prompts)
    }

    fn classify(&mut self, prompts: &[Vec<u32>], _: &[usize]) -> candle_core::Result<Tensor> {
        if self.task != Task::Score {
            bail!("the model has no classifier")
        }
        self.embed_prompts(prompts)
    }

    fn embed_part(
        &mut self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        work: &mut Option<PartialWork>,
    ) -> candle_core::Result<Option<Tensor>> {
        self.embed_prompts_in_parts(prompts, max_rows, work)
    }
}
