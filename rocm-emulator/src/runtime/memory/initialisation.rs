//! What copies and fills mean for the check of uninitialised memory.
use super::{ErrorCode, Memory, Result, fail};
use crate::exec::Written;
use crate::runtime::command::{Copy, Fill, Source};
use std::sync::Arc;

/// The history of an allocation and an offset into it.
type Tracked = (Arc<Written>, u64);

impl Memory {
    fn tracked(&self, address: usize) -> Option<Tracked> {
        let table = self.table.read();
        let (base, allocation) = table.live.range(..=address).next_back()?;
        let inside = address - base < allocation.len;
        let written = allocation.written.as_ref().filter(|_| inside)?;
        Some((Arc::clone(written), (address - base) as u64))
    }

    /// A copy that is about to be made: between devices it copies what is written, to the host it has to be.
    ///
    /// # Errors
    /// `LaunchFailure` when the host would get bytes that nothing has written.
    pub(in crate::runtime) fn note_copy(&self, copy: &Copy) -> Result<()> {
        if !self.checks.init {
            return Ok(());
        }
        for row in 0..copy.rows {
            let target = self.tracked(copy.target + row * copy.target_pitch);
            let from = match copy.source {
                Source::Address(source) => Some(source + row * copy.source_pitch),
                Source::Captured(_) => None,
            };
            let len = copy.width as u64;
            match (target, from.and_then(|from| self.tracked(from))) {
                (Some((target, to)), Some((source, from))) => target.copy(to, &source, from, len),
                (Some((target, to)), None) => target.set(to, len),
                (None, Some((source, offset))) => {
                    if let Some(missing) = source.missing(offset, len) {
                        return fail(
                            ErrorCode::LaunchFailure,
                            format!(
                                "uninitialised memory: a copy to the host of {len} bytes, {} of which nothing has \
                                 written, the first of them {} bytes after the start of the allocation at 0x{:x}",
                                missing.count,
                                offset + missing.first,
                                from.unwrap_or(0) as u64 - offset,
                            ),
                        );
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A fill that is about to be made.
    pub(in crate::runtime) fn note_fill(&self, fill: &Fill) {
        if self.checks.init
            && let Some((target, offset)) = self.tracked(fill.target)
        {
            target.set(offset, (fill.count * fill.width) as u64);
        }
    }
}
