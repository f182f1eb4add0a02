//! Loader of the fixtures without the runtime: segments into host memory, kernels from their descriptors.
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use rocm_emulator::exec::{
    AddressSpace, Counters, DEFAULT_INSTRUCTION_LIMIT, Fault, Instrumentation, KernelSpec, Launch, Program,
    Range, RangeHistories,
};
use rocm_emulator::isa::Family;
use std::path::Path;

/// Wave sizes for which fixtures are compiled.
pub const WAVE_SIZES: [u32; 2] = [32, 64];

/// Target of a compiled fixture.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    pub family: Family,
    /// Suffix of the file name.
    suffix: &'static str,
    /// Lanes per wave.
    pub lanes: u32,
}

const fn build(family: Family, suffix: &'static str, lanes: u32) -> Build {
    Build { family, suffix, lanes }
}

/// Builds for gfx11 with waves of both sizes, and for a GPU of each other family.
pub const BUILDS: [Build; 10] = [
    build(Family::Rdna3, "", 32),
    build(Family::Rdna3, ".wave64", 64),
    build(Family::Rdna2, ".gfx1030", 32),
    build(Family::Rdna35, ".gfx1151", 32),
    build(Family::Rdna4, ".gfx1201", 32),
    build(Family::Gcn5, ".gfx906", 64),
    build(Family::Cdna1, ".gfx908", 64),
    build(Family::Cdna2, ".gfx90a", 64),
    build(Family::Cdna3, ".gfx942", 64),
    build(Family::Cdna4, ".gfx950", 64),
];

/// A loaded code object.
pub struct CodeObject {
    /// Contents of the segments in memory.
    image: Vec<u64>,
    program: Program,
    kernels: Vec<KernelSpec>,
}

/// Explicit kernel arguments with their natural alignment.
#[derive(Default)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    fn push(mut self, bytes: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn pointer<T>(self, values: &[T]) -> Self {
        self.push(&(values.as_ptr() as u64).to_le_bytes())
    }
}

/// Launch parameters.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_lds: u32,
    pub threads: usize,
    pub instruction_limit: u64,
    pub instrumentation: Instrumentation,
}

impl Shape {
    pub fn new(grid: u32, block: u32) -> Self {
        Self {
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            dynamic_lds: 0,
            threads: 2,
            instruction_limit: DEFAULT_INSTRUCTION_LIMIT,
            instrumentation: Instrumentation::default(),
        }
    }
}

/// Returns the memory range of a slice that a kernel writes.
pub fn writable<T>(values: &mut [T]) -> Range {
    Range { base: values.as_mut_ptr() as u64, len: size_of_val(values) as u64, writable: true }
}

/// Returns the memory range of a slice that a kernel only reads.
pub fn readable<T>(values: &[T]) -> Range {
    Range { base: values.as_ptr() as u64, len: size_of_val(values) as u64, writable: false }
}

impl CodeObject {
    /// Reads `tests/fixtures/NAME.hsaco`, compiled for waves of 32 lanes.
    pub fn fixture(name: &str) -> Self {
        Self::for_waves(name, 32)
    }

    /// Reads the fixture that was compiled for gfx11's waves of `lanes` lanes.
    pub fn for_waves(name: &str, lanes: u32) -> Self {
        let [narrow, wide, ..] = BUILDS;
        Self::of(name, if lanes == 32 { narrow } else { wide })
    }

    pub fn of(name: &str, build: Build) -> Self {
        Self::for_chip(&format!("{name}{}", build.suffix), build.family)
    }

    /// Reads `tests/fixtures/NAME.hsaco`, compiled for a GPU of the family.
    pub fn for_chip(name: &str, family: Family) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.hsaco"));
        Self::load(&std::fs::read(path).expect("the fixture exists"), family)
    }

    pub fn load(bytes: &[u8], family: Family) -> Self {
        let header = FileHeader64::<Endianness>::parse(bytes).expect("an ELF file");
        let endian = header.endian().expect("an ELF file");
        let segments = header.program_headers(endian, bytes).expect("program headers");
        let loaded = || segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
        let size =
            loaded().map(|segment| segment.p_vaddr(endian) + segment.p_memsz(endian)).max().unwrap_or(0);
        let mut memory = vec![0u8; size as usize];
        for segment in loaded() {
            let data = segment.data(endian, bytes).expect("the segment's bytes");
            let at = segment.p_vaddr(endian) as usize;
            memory[at..at + data.len()].copy_from_slice(data);
        }
        memory.resize(memory.len().next_multiple_of(8), 0);
        let image: Vec<u64> = memory
            .chunks_exact(8)
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes")))
            .collect();
        let base = image.as_ptr() as u64;
        let elf = ElfFile64::<Endianness>::parse(bytes).expect("an ELF file");
        let mut kernels = Vec::new();
        for symbol in elf.dynamic_symbols() {
            let Some(name) = symbol.name().ok().and_then(|name| name.strip_suffix(".kd")) else { continue };
            let at = symbol.address() as usize;
            let word = |offset: usize| {
                u32::from_le_bytes(memory[at + offset..at + offset + 4].try_into().expect("4 bytes"))
            };
            let entry = u64::from(word(16)) | u64::from(word(20)) << 32;
            let wave32 = word(56) >> 10 & 1 != 0;
            let unified = matches!(family, Family::Cdna2 | Family::Cdna3 | Family::Cdna4);
            kernels.push(KernelSpec {
                name: name.to_owned(),
                entry: base.wrapping_add(symbol.address()).wrapping_add(entry),
                vgprs: if wave32 || unified { 8 } else { 4 } * ((word(48) & 63) + 1),
                sgprs: 106,
                lds_bytes: word(0),
                private_bytes: word(4),
                kernarg_bytes: word(8),
                rsrc3: word(44),
                rsrc1: word(48),
                rsrc2: word(52),
                code_properties: word(56) as u16,
                wave32,
            });
        }
        let program = Program::load(family, memory, base);
        Self { image, program, kernels }
    }

    /// Launches a kernel on the given memory.
    pub fn launch(
        &self,
        kernel: &str,
        shape: Shape,
        arguments: &Arguments,
        ranges: &[Range],
    ) -> Result<Counters, Fault> {
        self.launch_with_histories(kernel, shape, arguments, ranges, RangeHistories::new())
    }

    /// Launches a kernel on memory with histories for the checks.
    pub fn launch_with_histories(
        &self,
        kernel: &str,
        shape: Shape,
        arguments: &Arguments,
        ranges: &[Range],
        histories: RangeHistories,
    ) -> Result<Counters, Fault> {
        let kernel = self.kernels.iter().find(|spec| spec.name == kernel).expect("the kernel exists");
        let mut kernarg = arguments.0.clone();
        // Hidden arguments of code object version 5: workgroup counts and sizes.
        kernarg.resize(kernarg.len().next_multiple_of(8), 0);
        shape.grid.iter().for_each(|count| kernarg.extend(count.to_le_bytes()));
        shape.block.iter().for_each(|&size| kernarg.extend((size as u16).to_le_bytes()));
        kernarg.resize((kernel.kernarg_bytes as usize).max(kernarg.len()), 0);
        let mut ranges = ranges.to_vec();
        ranges.push(readable(&self.image));
        // SAFETY: the ranges are live slices of the test, which does not use them while the launch runs.
        let memory = unsafe { AddressSpace::from_ranges(ranges) }.with_histories(histories);
        rocm_emulator::exec::run(&Launch {
            program: &self.program,
            kernel,
            grid: shape.grid,
            block: shape.block,
            dynamic_lds: shape.dynamic_lds,
            kernarg: &kernarg,
            memory: &memory,
            threads: shape.threads,
            instruction_limit: shape.instruction_limit,
            instrumentation: shape.instrumentation,
        })
    }
}
