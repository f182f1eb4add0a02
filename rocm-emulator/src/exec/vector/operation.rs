//! Operations on single lanes, and their compilation to functions on all lanes.
//!
//! An [`Operation`] defines the computation in one lane. [`Entry::of`] compiles it twice: for every x86-64
//! host, and for hosts with AVX2 and FMA. The choice between the two is made when an instruction is prepared.
use std::mem::MaybeUninit;

use super::general::{self, Description};
use super::kind::{Format, Kind, Raw};
use super::operand::{Operands, Target};
use super::register;
use crate::exec::wave::Wave;

/// Class of an operation, which determines its rounding in non-default modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The result is exact, or the operation defines its own rounding.
    Other,
    Add,
    Sub,
    Mul,
    Fma,
    /// Product and sum are rounded separately.
    Mad,
    /// A conversion from the source's float format to the result's.
    Convert,
    /// Conversions from signed and unsigned integers.
    FromSigned,
    FromUnsigned,
    /// Minima and maxima, which first quiet signalling NaNs if IEEE mode is off.
    MinMax,
}

/// The computation in one lane.
pub trait Operation: 'static {
    type Sources: Sources;
    type Result: Kind;
    const FORM: Form = Form::Other;
    /// True if the second destination is a lane mask of [`Self::carry`].
    const CARRY: bool = false;

    fn apply(values: <Self::Sources as Sources>::Values) -> <Self::Result as Kind>::Value;

    #[inline(always)]
    fn carry(_values: <Self::Sources as Sources>::Values) -> bool {
        false
    }
}

/// Sources of an operation: a tuple of one to four kinds.
pub trait Sources: 'static {
    type Values: Copy;
    const FORMATS: &'static [Format];
    const FLOAT: bool;

    /// Applies `O` to every lane and returns the results, which are stored in `buffer`.
    fn map<'a, O: Operation<Sources = Self>, const W: usize>(
        wave: &Wave<W>,
        operands: &Operands,
        buffer: &'a mut MaybeUninit<[<O::Result as Kind>::Raw; W]>,
        carry: &mut [u32; W],
    ) -> &'a mut [<O::Result as Kind>::Raw; W];

    /// Converts one lane's bits to values.
    fn from_bits(bits: [u64; 4]) -> Self::Values;
}

macro_rules! sources {
    ($($kind:ident $index:tt),*) => {
        impl<$($kind: Kind),*> Sources for ($($kind,)*) {
            type Values = ($($kind::Value,)*);
            const FORMATS: &'static [Format] = &[$($kind::FORMAT),*];
            const FLOAT: bool = false $(|| $kind::FLOAT)*;

            #[inline(always)]
            fn map<'a, O: Operation<Sources = Self>, const W: usize>(
                wave: &Wave<W>,
                operands: &Operands,
                buffer: &'a mut MaybeUninit<[<O::Result as Kind>::Raw; W]>,
                carry: &mut [u32; W],
            ) -> &'a mut [<O::Result as Kind>::Raw; W] {
                let mut buffers = ($(MaybeUninit::<[$kind::Raw; W]>::uninit(),)*);
                let lanes = ($($kind::fetch(wave, &operands.src[$index], &mut buffers.$index),)*);
                // The optimizer removes the zeros because the next loop overwrites them.
                let out = buffer.write([Default::default(); W]);
                for i in 0..W {
                    out[i] = O::Result::pack(O::apply(($($kind::unpack(lanes.$index[i]),)*)));
                }
                if O::CARRY && operands.dst2 != Target::None {
                    for i in 0..W {
                        carry[i] = u32::from(O::carry(($($kind::unpack(lanes.$index[i]),)*))).wrapping_neg();
                    }
                }
                out
            }

            #[inline(always)]
            fn from_bits(bits: [u64; 4]) -> Self::Values {
                ($($kind::unpack(Raw::narrow(bits[$index])),)*)
            }
        }
    };
}

sources!(A 0);
sources!(A 0, B 1);
sources!(A 0, B 1, C 2);
sources!(A 0, B 1, C 2, D 3);

/// Function that executes a prepared instruction.
///
/// # Safety
/// The host must have the CPU features for which the function was compiled.
pub type Action<const W: usize> = unsafe fn(&Operands, &mut Wave<W>);

/// An operation in the tables of mnemonics.
#[derive(Clone, Copy)]
pub struct Entry<const W: usize> {
    pub action: Action<W>,
    /// Description for the slow path, which supports every mode.
    pub description: &'static Description,
    pub sources: &'static [Format],
    pub result: Format,
}

impl<const W: usize> Entry<W> {
    /// Returns the fastest compilation of `O` for this host.
    pub fn of<O: Operation>() -> Self {
        Self {
            action: action::<O, W>(),
            description: const { &description::<O>() },
            sources: O::Sources::FORMATS,
            result: O::Result::FORMAT,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn action<O: Operation, const W: usize>() -> Action<W> {
    if wide_vectors() { on_wide_vectors::<O, W> } else { on_any::<O, W> }
}

#[cfg(not(target_arch = "x86_64"))]
fn action<O: Operation, const W: usize>() -> Action<W> {
    on_any::<O, W>
}

#[cfg(test)]
thread_local! {
    /// Disables wide vectors, to test the code for any x86-64 host.
    pub static BASELINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns true if the host has all features that [`on_wide_vectors`] needs.
#[cfg(target_arch = "x86_64")]
fn wide_vectors() -> bool {
    #[cfg(test)]
    if BASELINE.get() {
        return false;
    }
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// # Safety
/// [`wide_vectors`] must be true.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt")]
unsafe fn on_wide_vectors<O: Operation, const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    all_lanes::<O, W>(operands, wave);
}

/// # Safety
/// There are no requirements; the function is unsafe only to match [`Action`].
unsafe fn on_any<O: Operation, const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    all_lanes::<O, W>(operands, wave);
}

#[inline(always)]
fn all_lanes<O: Operation, const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    if (O::Sources::FLOAT || O::Result::FLOAT) && !general::is_default_mode(&wave.mode, O::FORM) {
        return general::run(const { &description::<O>() }, operands, wave);
    }
    let mut buffer = MaybeUninit::uninit();
    let mut carry = [0; W];
    let out = O::Sources::map::<O, W>(wave, operands, &mut buffer, &mut carry);
    if O::CARRY {
        let active = operands.write_mask(wave);
        O::Result::store(operands, wave, out);
        register::store_mask(operands.dst2, false, wave, active, register::collect(&carry));
    } else {
        O::Result::store(operands, wave, out);
    }
}

const fn description<O: Operation>() -> Description {
    Description {
        sources: O::Sources::FORMATS,
        result: O::Result::FORMAT,
        form: O::FORM,
        lane: one_lane::<O>,
        carry: if O::CARRY { Some(one_carry::<O>) } else { None },
    }
}

fn one_lane<O: Operation>(bits: [u64; 4]) -> u64 {
    O::Result::pack(O::apply(O::Sources::from_bits(bits))).widen()
}

fn one_carry<O: Operation>(bits: [u64; 4]) -> bool {
    O::carry(O::Sources::from_bits(bits))
}

/// Defines a table of operations, one per line: `"mnemonic" TypeName [Form] (source: Kind, ...) -> Kind {
/// body }`. The form is omitted if it is `Other`. `carry { body }` follows if the second result is a lane
/// mask. A mnemonic may consist of several literals. The table expands to the function `$select`, from mnemonic to
/// [`Entry`].
macro_rules! operations {
    ($select:ident; $(
        $mnemonic:literal $($more:literal)* $name:ident $([$form:ident])? ($($sources:tt)*) -> $result:ident $body:block
        $(carry $carry:block)?
    )*) => {
        $(
            $crate::exec::vector::operation::operation! {
                $name ($($sources)*) $result
                { $(const FORM: $crate::exec::vector::operation::Form =
                    $crate::exec::vector::operation::Form::$form;)? }
                $body $($carry)?
            }
        )*

        /// Returns the operation of this table with the given mnemonic.
        pub fn $select<const W: usize>(mnemonic: &str) -> Option<$crate::exec::vector::operation::Entry<W>> {
            Some(match mnemonic {
                $(concat!($mnemonic $(, $more)*) => $crate::exec::vector::operation::Entry::of::<$name>(),)*
                _ => return None,
            })
        }
    };
}

/// Defines a table of [`operations`] for each of several kinds, which the lines call `K`. The kind's suffix is inserted
/// after the first literal of a mnemonic. The tables are in modules; `$select` searches all of them.
macro_rules! families {
    ($select:ident; $($module:ident $suffix:literal $kind:ident),*; $lines:tt) => {
        $(
            mod $module {
                #[allow(unused_imports)]
                use super::*;
                use super::$kind as K;
                $crate::exec::vector::operation::family! { $suffix $lines }
            }
        )*

        /// Returns the operation of these tables with the given mnemonic.
        pub fn $select<const W: usize>(mnemonic: &str) -> Option<$crate::exec::vector::operation::Entry<W>> {
            None$(.or_else(|| $module::select(mnemonic)))*
        }
    };
}

/// Defines the table of one kind of [`families`].
macro_rules! family {
    ($suffix:literal {$(
        $mnemonic:literal $($more:literal)? $name:ident $([$form:ident])? ($($sources:tt)*) -> $result:ident
            $body:block
    )*}) => {
        $crate::exec::vector::operation::operations! { select; $(
            $mnemonic $suffix $($more)? $name $([$form])? ($($sources)*) -> $result $body
        )* }
    };
}

/// Defines one line of [`operations`]: the type, and its [`Operation`].
macro_rules! operation {
    ($name:ident $sources:tt $result:ident { $($more:tt)* } $body:block $carry:block) => {
        $crate::exec::vector::operation::operation! {
            $name $sources $result
            {
                $($more)*
                const CARRY: bool = true;
                $crate::exec::vector::operation::lane! { carry $sources bool, $carry }
            }
            $body
        }
    };
    ($name:ident ($($arg:ident: $kind:ident),*) $result:ident { $($more:tt)* } $body:block) => {
        pub struct $name;
        impl $crate::exec::vector::operation::Operation for $name {
            type Sources = ($($kind,)*);
            type Result = $result;
            $crate::exec::vector::operation::lane! {
                apply ($($arg: $kind),*) <$result as $crate::exec::vector::kind::Kind>::Value, $body
            }
            $($more)*
        }
    };
}

/// Defines a function of one lane's values.
macro_rules! lane {
    ($function:ident ($($arg:ident: $kind:ident),*) $output:ty, $body:block) => {
        #[inline(always)]
        #[allow(unused_variables)]
        fn $function(($($arg,)*): ($(<$kind as $crate::exec::vector::kind::Kind>::Value,)*)) -> $output $body
    };
}
pub(super) use {families, family, lane, operation, operations};
