//! Checks of copies and fills: their bounds, and reads of uninitialized memory.
use super::super::bail;
use super::{Memory, Result, holding};
use crate::exec::Written;
use crate::runtime::command::{Copy, Fill, Source};
use std::sync::Arc;

/// The record of written bytes of a part of an allocation, and an offset into it.
type Tracked = (Arc<Written>, u64);

impl Memory {
    fn tracked(&self, address: usize) -> Option<Tracked> {
        let table = self.table.read();
        let (_, allocation) = holding(&table, address)?;
        let part = allocation.parts.find(address)?;
        Some((Arc::clone(part.written.as_ref()?), (address - part.base) as u64))
    }

    /// Checks a copy before it runs. Between devices, the record of written bytes is copied too; a copy to the host
    /// requires written bytes.
    ///
    /// # Errors
    /// `IllegalAddress` if it exceeds live memory, `LaunchFailure` if the host would read bytes that were never written.
    pub(in crate::runtime) fn check_copy(&self, copy: &Copy) -> Result<()> {
        self.check_copy_bounds(copy)?;
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
                        bail!(
                            LaunchFailure,
                            "uninitialised memory: a copy to the host of {len} bytes, {} of which nothing has \
                                 written, the first of them {} bytes after the start of the allocation at 0x{:x}",
                            missing.count,
                            offset + missing.first,
                            from.unwrap_or(0) as u64 - offset
                        );
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Checks a fill before it runs, and records the bytes as written.
    ///
    /// # Errors
    /// `IllegalAddress` if it exceeds live memory.
    pub(in crate::runtime) fn check_fill(&self, fill: &Fill) -> Result<()> {
        self.check_fill_bounds(fill)?;
        if self.checks.init
            && let Some((target, offset)) = self.tracked(fill.target)
        {
            target.set(offset, (fill.count * fill.width) as u64);
        }
        Ok(())
    }
}
