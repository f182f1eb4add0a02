//! Formatting of faults: the error, the work-item that caused it, the memory, and the surrounding code.
use super::{EarlierAccess, Fault, FaultKind, FreedRange, Location, Range, Site};
use std::fmt::{Display, Formatter, Result};

/// Addresses below this limit probably come from indexing a null pointer.
const NULL_PAGE: u64 = 64 << 10;

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let Self { kernel, pc, site, workgroup, wave, kind } = self;
        write!(f, "kernel {kernel}: {kind}")?;
        if site.instruction.is_empty() {
            return Ok(());
        }
        write!(f, "\n  at      {}", Code { kernel, site, pc: *pc, instruction: &site.instruction })?;
        write!(f, "\n  by      workgroup {workgroup:?}, wave {wave}")?;
        if let Some(lane) = kind.lane() {
            write!(f, ", lane {lane}, work-item {:?}", site.work_item(*wave, lane))?;
        }
        if let FaultKind::Race { earlier, .. } = kind {
            let EarlierAccess { access, pc, instruction, workgroup, wave, lane, .. } = &**earlier;
            write!(f, "\n  races   with the {access} at {}", Code { kernel, site, pc: *pc, instruction })?;
            let work_item = site.work_item(*wave, *lane);
            write!(
                f,
                "\n          by workgroup {workgroup:?}, wave {wave}, lane {lane}, work-item {work_item:?}"
            )?;
        }
        if let Some(memory_text) = kind.memory_text() {
            write!(f, "\n  memory  {memory_text}")?;
        }
        for (index, (offset, text)) in site.listing.iter().enumerate() {
            let (label, mark) = (if index == 0 { "code" } else { "" }, if offset == pc { '>' } else { ' ' });
            write!(f, "\n  {label:<6}{mark} 0x{offset:x}  {text}")?;
        }
        Ok(())
    }
}

/// Formats an instruction and its location.
struct Code<'a> {
    kernel: &'a str,
    site: &'a Site,
    pc: u64,
    instruction: &'a str,
}

impl Display for Code<'_> {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let Self { kernel, site, pc, instruction } = self;
        write!(f, "`{instruction}` (pc 0x{pc:x}")?;
        match pc.checked_sub(site.entry) {
            Some(distance) => write!(f, ", {kernel} + 0x{distance:x})"),
            None => f.write_str(")"),
        }
    }
}

impl FaultKind {
    /// Returns the lane whose access caused the fault, if it was a memory access.
    pub fn lane(&self) -> Option<u32> {
        match *self {
            Self::OutOfBounds { lane, .. }
            | Self::UseAfterFree { lane, .. }
            | Self::ReadOnly { lane, .. }
            | Self::KernargOutOfBounds { lane, .. }
            | Self::LdsOutOfBounds { lane, .. }
            | Self::PrivateOutOfBounds { lane, .. }
            | Self::Misaligned { lane, .. }
            | Self::Uninitialised { lane, .. }
            | Self::Race { lane, .. } => Some(lane),
            _ => None,
        }
    }

    /// Describes the memory at the location of the access, or nearest to it.
    fn memory_text(&self) -> Option<String> {
        match *self {
            Self::OutOfBounds { address, bytes, nearest, .. }
            | Self::ReadOnly { address, bytes, nearest, .. } => {
                Some(nearest_text(nearest, address, bytes.into()))
            }
            Self::UseAfterFree { address, freed, .. } => Some(freed_text(freed, address)),
            Self::KernargOutOfBounds { size, .. } => {
                Some(format!("the kernel has {size} bytes of arguments"))
            }
            Self::LdsOutOfBounds { size, .. } => Some(lds_text(size)),
            Self::PrivateOutOfBounds { size, .. } => Some(private_text(size)),
            Self::Misaligned { location, bytes, .. }
            | Self::Uninitialised { location, bytes, .. }
            | Self::Race { location, bytes, .. } => Some(match location {
                Location::Global { address, nearest } => nearest_text(nearest, address, bytes.into()),
                Location::Lds { size, .. } => lds_text(size),
                Location::Private { size, .. } => private_text(size),
            }),
            _ => None,
        }
    }
}

fn lds_text(size: u32) -> String {
    format!("the workgroup has {size} bytes of LDS")
}

fn private_text(size: u32) -> String {
    format!("a lane has {size} bytes of private memory")
}

/// Describes the freed allocation that contained an address.
pub(super) fn freed_text(freed: FreedRange, address: u64) -> String {
    let later = match freed.since {
        0 => "nothing was freed after it".into(),
        1 => "one other allocation was freed after it".into(),
        count => format!("{count} other allocations were freed after it"),
    };
    let FreedRange { base, len, .. } = freed;
    format!(
        "byte {} of an allocation of {len} bytes at 0x{base:x} that has been freed; {later}",
        address - base
    )
}

/// Describes the allocation at an address, or nearest to it.
pub(super) fn nearest_text(nearest: Option<Range>, address: u64, bytes: u64) -> String {
    let Some(range) = nearest else { return "there is no allocation".into() };
    let Range { base, len, .. } = range;
    let within = |offset: u64| format!("byte {offset} of an allocation of {len} bytes at 0x{base:x}");
    if range.holds(address, bytes) {
        return within(address - base);
    }
    if range.holds(address, 1) {
        let over = address.saturating_add(bytes) - range.end();
        return format!("{}, {over} bytes beyond its end", within(address - base));
    }
    let location = match (address.checked_sub(range.end()), base.saturating_sub(address)) {
        (Some(0), _) => "right behind".into(),
        (Some(behind), _) => format!("{behind} bytes behind"),
        (None, before) => format!("{before} bytes before"),
    };
    let null = if address < NULL_PAGE { "a null pointer? It lies " } else { "" };
    format!("{null}{location} the nearest allocation, {len} bytes at 0x{base:x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Access;

    const RANGE: Range = Range { base: 0x10_0000, len: 20, writable: true };

    #[test]
    fn reports_name_the_nearest_allocation_and_the_distance() {
        let text = |address, bytes| nearest_text(Some(RANGE), address, bytes);
        let end = RANGE.end();
        assert_eq!(text(end, 4), "right behind the nearest allocation, 20 bytes at 0x100000");
        assert_eq!(text(end + 8, 4), "8 bytes behind the nearest allocation, 20 bytes at 0x100000");
        assert_eq!(text(RANGE.base - 4, 4), "4 bytes before the nearest allocation, 20 bytes at 0x100000");
        assert_eq!(
            text(end - 2, 4),
            "byte 18 of an allocation of 20 bytes at 0x100000, 2 bytes beyond its end"
        );
        assert_eq!(text(RANGE.base + 16, 4), "byte 16 of an allocation of 20 bytes at 0x100000");
        assert!(text(12, 4).starts_with("a null pointer? It lies 1048564 bytes before"));
        assert_eq!(nearest_text(None, 12, 4), "there is no allocation");
    }

    #[test]
    fn work_items_are_numbered_along_x_first() {
        let site = Site { block: [10, 4, 3], lanes: 32, ..Site::default() };
        assert_eq!(site.work_item(0, 9), [9, 0, 0]);
        assert_eq!(site.work_item(1, 10), [2, 0, 1]);
        assert_eq!(site.work_item(3, 23), [9, 3, 2]);
    }

    #[test]
    fn reports_name_instruction_work_item_memory_and_code() {
        let code = "global_store_b32 v0, v1, s[0:1]";
        let listing = [(0x1a38, "s_waitcnt lgkmcnt(0)"), (0x1a3c, code), (0x1a44, "s_endpgm")];
        let site = Site {
            instruction: code.into(),
            listing: listing.map(|(offset, text)| (offset, text.into())).into(),
            entry: 0x1a00,
            block: [64, 1, 1],
            lanes: 32,
        };
        let kind = FaultKind::UseAfterFree {
            access: Access::Store,
            lane: 5,
            address: 0x1008,
            bytes: 4,
            freed: FreedRange { base: 0x1000, len: 64, since: 1 },
        };
        let (kernel, workgroup) = ("k".into(), [2, 0, 0]);
        let fault = Fault { kernel, pc: 0x1a3c, site: Box::new(site), workgroup, wave: 1, kind };
        let expected = "\
kernel k: use after free: store of 4 bytes at 0x1008
  at      `global_store_b32 v0, v1, s[0:1]` (pc 0x1a3c, k + 0x3c)
  by      workgroup [2, 0, 0], wave 1, lane 5, work-item [37, 0, 0]
  memory  byte 8 of an allocation of 64 bytes at 0x1000 that has been freed; one other allocation was freed after it
  code    0x1a38  s_waitcnt lgkmcnt(0)
        > 0x1a3c  global_store_b32 v0, v1, s[0:1]
          0x1a44  s_endpgm";
        assert_eq!(fault.to_string(), expected);
    }

    #[test]
    fn reports_of_bad_launches_have_one_line() {
        let kind = FaultKind::BadLaunch("grid [0, 0, 0]".into());
        let (kernel, site) = ("k".into(), Box::default());
        let fault = Fault { kernel, pc: 0, site, workgroup: [0; 3], wave: 0, kind };
        assert_eq!(fault.to_string(), "kernel k: bad launch: grid [0, 0, 0]");
    }
}
