//! Rows of an instruction table, and the parser of their notation.
/// Number of opcode columns in a table, one per instruction-set family.
pub const CHIPS: usize = 6;

/// Kind of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `v`: vector registers.
    Vgpr,
    /// `g`: accumulation registers.
    Agpr,
    /// `t`: a matrix in vector or accumulation registers, as the encoding selects, or a constant addend.
    Matrix,
    /// `x`: vector registers, scalar registers or a constant.
    Any,
    /// `c` (source) or `s`: scalar registers or a constant.
    Scalar,
    /// `b`: a lane mask in scalar registers; implicitly VCC in the 32-bit encodings.
    Mask,
    /// `e`: EXEC, which is not encoded.
    Exec,
    /// `k`: the literal dword that follows the instruction.
    Literal,
    /// `a`, `d`, `q`: address and data registers of a memory instruction.
    Address,
    Data0,
    Data1,
    /// `i`, `n`: a 16-bit immediate, printed in hexadecimal or in decimal; `r`: a branch distance.
    Immediate,
    Decimal,
    Branch,
    /// `m`: a message; `h`: a hardware register; `l`, `w`, `p`: the fields of s_delay_alu, s_waitcnt and
    /// s_waitcnt_depctr; `j`: the mask of indexed operands.
    Message,
    HwReg,
    GprIndex,
    Delay,
    WaitCount,
    Depctr,
}

/// Role of an operand in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Source,
    /// `=`: always written.
    Destination,
    /// `?`: written only if the instruction returns the old value.
    Returned,
}

/// One operand of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub class: Class,
    pub role: Role,
    /// Number of dwords. 0 means half a register (`h` in the notation), selected with `.l` or `.h`.
    pub dwords: u8,
}

impl Slot {
    pub const fn is_half(&self) -> bool {
        self.dwords == 0
    }
}

/// One instruction of an encoding.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub op: u16,
    pub name: &'static str,
    slots: [Option<Slot>; 5],
}

impl Row {
    /// Returns the operands in printed order.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    pub fn sources(&self) -> impl Iterator<Item = &Slot> {
        self.slots().filter(|slot| slot.role == Role::Source)
    }

    pub fn destinations(&self) -> impl Iterator<Item = &Slot> {
        self.slots().filter(|slot| slot.role != Role::Source)
    }

    pub fn has_operands(&self) -> bool {
        self.slots[0].is_some()
    }
}

/// Returns the rows of a line of [`rows::TABLES`] for the opcode column `column`. `prefix` replaces `*`.
/// Returns `None` if the column has no opcode.
///
/// [`rows::TABLES`]: super::rows::TABLES
pub fn parse_line(line: &str, prefix: &str, column: usize) -> Option<Vec<Row>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (names, rest) = words.split_first()?;
    let (operands, opcodes) = rest.split_at_checked(rest.len().checked_sub(CHIPS)?)?;
    let first = u16::from_str_radix(opcodes[column], 16).ok()?;
    let row = |(index, (op, name)): (usize, (u16, String))| {
        let mut slots = [None; 5];
        for (slot, word) in slots.iter_mut().zip(operands) {
            *slot = Some(parse_slot(word, index)?);
        }
        // Tables are built once and live as long as the process.
        Some(Row { op, name: name.leak(), slots })
    };
    let names = (first..).zip(expand(&names.replace('*', prefix))).enumerate();
    names.filter(|(_, (_, name))| !name.contains('-')).map(row).collect()
}

/// Expands a pattern to names, one for each choice in each pair of braces. The last pair varies fastest.
pub fn expand(pattern: &str) -> Vec<String> {
    let braces = pattern.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (choices, end))) = braces else { return vec![pattern.to_string()] };
    let ends = expand(end);
    let names = |choice| ends.iter().map(move |end| format!("{start}{choice}{end}"));
    choices.split(',').flat_map(names).collect()
}

/// `=v2`: role, class, dwords or `h`; one dword if no number is given. Of a list, the name's index selects the number.
fn parse_slot(word: &str, index: usize) -> Option<Slot> {
    let (role, word) = match word.as_bytes().first()? {
        b'=' => (Role::Destination, &word[1..]),
        b'?' => (Role::Returned, &word[1..]),
        _ => (Role::Source, word),
    };
    let (letter, sizes) = word.split_at_checked(1)?;
    let class = match letter {
        "v" => Class::Vgpr,
        "g" => Class::Agpr,
        "t" => Class::Matrix,
        "x" => Class::Any,
        "c" | "s" => Class::Scalar,
        "b" => Class::Mask,
        "e" => Class::Exec,
        "k" => Class::Literal,
        "a" => Class::Address,
        "d" => Class::Data0,
        "q" => Class::Data1,
        "i" => Class::Immediate,
        "n" => Class::Decimal,
        "r" => Class::Branch,
        "m" => Class::Message,
        "h" => Class::HwReg,
        "j" => Class::GprIndex,
        "l" => Class::Delay,
        "w" => Class::WaitCount,
        "p" => Class::Depctr,
        _ => return None,
    };
    let size = sizes.split(',').cycle().nth(index)?;
    let dwords = match size {
        "" => 1,
        "h" => 0,
        number => number.parse().ok()?,
    };
    Some(Slot { class, role, dwords })
}
