//! Compares the software GPU's decoding of every shipped instruction with llvm-objdump.
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};
use rocm_emulator::isa::{Family, check::compare_with_objdump};

fn family(target: &str) -> Option<Family> {
    Some(match target {
        "gfx908" => Family::Cdna1,
        "gfx90a" => Family::Cdna2,
        "gfx942" | "gfx9-4-generic" => Family::Cdna3,
        _ if target.starts_with("gfx10") => Family::Rdna2,
        _ if target.starts_with("gfx115") => Family::Rdna35,
        _ if target.starts_with("gfx11") => Family::Rdna3,
        _ if target.starts_with("gfx12") => Family::Rdna4,
        _ => return None,
    })
}

fn objdump(path: &std::path::Path) -> Result<String> {
    let program = std::env::var("CANDLE_ROCM_OBJDUMP").unwrap_or_else(|_| "llvm-objdump-22".into());
    let output = Command::new(&program)
        .args(["--disassemble"])
        .arg(path)
        .output()
        .with_context(|| format!("cannot run {program}: install llvm-22 or set CANDLE_ROCM_OBJDUMP"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn all_shipped_code_objects_decode_like_llvm() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut instructions = 0;
    for (&arch, family) in hip_kernels::archs().iter().filter_map(|arch| Some((arch, family(arch)?))) {
        for module in hip_kernels::Module::ALL {
            let object = hip_kernels::code_object(module, arch)?;
            let path = folder.path().join(format!("{}-{arch}.hsaco", module.name()));
            std::fs::write(&path, &object.bytes)?;
            let elf = object::File::parse(&*object.bytes)?;
            let text = elf.section_by_name(".text").context("no .text")?;
            match compare_with_objdump(family, text.data()?, text.address(), &objdump(&path)?) {
                Ok(count) => instructions += count,
                Err(mismatches) => bail!(
                    "{} on {arch}: {} mismatches, the first: {:#?}",
                    module.name(),
                    mismatches.len(),
                    mismatches.first()
                ),
            }
        }
    }
    println!("{instructions} instructions decoded like llvm-objdump");
    assert!(instructions > 100_000, "only {instructions} instructions were compared");
    Ok(())
}
