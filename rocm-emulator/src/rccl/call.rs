//! One call of an operation, and its description for the other ranks.
use super::segment::PART;
use super::types::{DataType, Kind, Op};
use std::fmt;

/// A call with checked arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub kind: Kind,
    pub datatype: DataType,
    /// The reduction; `Sum` for operations without one.
    pub op: Op,
    /// The root of a broadcast, or the rank at the other end of a message.
    pub peer: usize,
    /// The number of elements that the caller passed.
    pub count: usize,
    /// Size of these elements in bytes.
    pub bytes: usize,
    /// Device addresses.
    pub send: usize,
    pub receive: usize,
}

impl Call {
    /// Returns true for a message between two ranks, which the others do not take part in.
    pub fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::Receive)
    }

    /// Returns the number of parts of `bytes`, at least one, so that calls without elements are compared too.
    fn parts_per_block(&self) -> usize {
        self.bytes.div_ceil(PART).max(1)
    }

    /// Returns the number of steps of a collective operation, in each of which every rank publishes a part.
    pub fn steps(&self, ranks: usize) -> usize {
        match self.kind {
            Kind::ReduceScatter => ranks * self.parts_per_block(),
            _ => self.parts_per_block(),
        }
    }

    /// Returns a step's block, its offset in the block in bytes, and the size of its part.
    pub fn part(&self, step: usize) -> (usize, usize, usize) {
        let (block, part) = (step / self.parts_per_block(), step % self.parts_per_block());
        let offset = part * PART;
        (block, offset, PART.min(self.bytes - offset))
    }

    /// Returns the number of bytes that the operation reads on `rank` and that it writes.
    pub fn extents(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let all = self.bytes * ranks;
        match self.kind {
            Kind::AllReduce => (self.bytes, self.bytes),
            Kind::AllGather => (self.bytes, all),
            Kind::ReduceScatter => (all, self.bytes),
            Kind::Broadcast => (if rank == self.peer { self.bytes } else { 0 }, self.bytes),
            Kind::Send => (self.bytes, 0),
            Kind::Receive => (0, self.bytes),
        }
    }

    /// Returns what all ranks must agree on, for call number `number` of a rank.
    pub fn description(&self, number: u64) -> [u64; 6] {
        let count = self.count as u64;
        [number, self.kind as u64, self.datatype as u64, self.op as u64, self.peer as u64, count]
    }
}

/// The description that a rank has published.
pub struct Described(pub [u64; 6]);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [number, kind, datatype, op, peer, count] = self.0;
        let (Some(kind), Some(datatype), Some(op)) = (Kind::new(kind), DataType::new(datatype), Op::new(op))
        else {
            return write!(f, "an unknown operation");
        };
        write!(f, "{}", kind.name())?;
        match kind {
            Kind::AllReduce | Kind::ReduceScatter => write!(f, " ({})", op.name())?,
            Kind::Broadcast => write!(f, " from rank {peer}")?,
            _ => {}
        }
        write!(f, " of {count} {} as its call {number}", datatype.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: Kind, count: usize) -> Call {
        let datatype = DataType::F32;
        let bytes = count * datatype.size();
        Call { kind, datatype, op: Op::Sum, peer: 0, count, bytes, send: 0, receive: 0 }
    }

    #[test]
    fn parts_cover_every_byte_once() {
        for count in [0, 1, PART / 4, PART / 4 + 1, PART] {
            for kind in [Kind::AllReduce, Kind::ReduceScatter] {
                let call = call(kind, count);
                let blocks = call.steps(3) / call.steps(1).min(call.parts_per_block());
                let mut next = vec![0; blocks];
                for step in 0..call.steps(3) {
                    let (block, offset, len) = call.part(step);
                    assert_eq!(offset, next[block]);
                    next[block] += len;
                }
                assert!(next.iter().all(|end| *end == call.bytes), "{count}: {next:?}");
            }
        }
    }

    #[test]
    fn descriptions_are_readable() {
        let text = |kind| Described(call(kind, 5).description(2)).to_string();
        assert_eq!(text(Kind::AllReduce), "all-reduce (sum) of 5 f32 as its call 2");
        assert_eq!(text(Kind::Broadcast), "broadcast from rank 0 of 5 f32 as its call 2");
        assert_eq!(Described([0; 6]).to_string(), "an unknown operation");
    }
}
