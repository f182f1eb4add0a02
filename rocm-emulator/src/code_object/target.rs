//! The target chip of a code object, from the ELF header's flags.
use super::CodeObjectError;

/// State of a target feature (XNACK, SRAM ECC) in code object version 4 and later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The chip lacks the feature.
    Unsupported,
    /// The code runs with the feature enabled or disabled.
    Any,
    /// The code requires the feature to be disabled.
    Off,
    /// The code requires the feature to be enabled.
    On,
}

impl Feature {
    fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unsupported,
            1 => Self::Any,
            2 => Self::Off,
            _ => Self::On,
        }
    }

    fn suffix(self, name: &str) -> String {
        match self {
            Self::Unsupported | Self::Any => String::new(),
            Self::Off => format!(":{name}-"),
            Self::On => format!(":{name}+"),
        }
    }
}

/// Target processor and features of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// LLVM's processor name, such as `gfx1100` or `gfx11-generic`.
    pub processor: &'static str,
    /// Replay of memory accesses after page faults.
    pub xnack: Feature,
    /// Error correction of on-chip memory.
    pub sramecc: Feature,
    /// Version of a generic target; 0 for other targets.
    pub generic_version: u8,
}

/// EF_AMDGPU_MACH values (LLVM's AMDGPU usage guide).
const MACHINES: &[(u32, &str)] = &[
    (0x02c, "gfx900"),
    (0x02d, "gfx902"),
    (0x02e, "gfx904"),
    (0x02f, "gfx906"),
    (0x030, "gfx908"),
    (0x031, "gfx909"),
    (0x032, "gfx90c"),
    (0x033, "gfx1010"),
    (0x034, "gfx1011"),
    (0x035, "gfx1012"),
    (0x036, "gfx1030"),
    (0x037, "gfx1031"),
    (0x038, "gfx1032"),
    (0x039, "gfx1033"),
    (0x03d, "gfx1035"),
    (0x03e, "gfx1034"),
    (0x03f, "gfx90a"),
    (0x040, "gfx940"),
    (0x041, "gfx1100"),
    (0x042, "gfx1013"),
    (0x043, "gfx1150"),
    (0x044, "gfx1103"),
    (0x045, "gfx1036"),
    (0x046, "gfx1101"),
    (0x047, "gfx1102"),
    (0x048, "gfx1200"),
    (0x049, "gfx1250"),
    (0x04a, "gfx1151"),
    (0x04b, "gfx941"),
    (0x04c, "gfx942"),
    (0x04e, "gfx1201"),
    (0x04f, "gfx950"),
    (0x051, "gfx9-generic"),
    (0x052, "gfx10-1-generic"),
    (0x053, "gfx10-3-generic"),
    (0x054, "gfx11-generic"),
    (0x055, "gfx1152"),
    (0x058, "gfx1153"),
    (0x059, "gfx12-generic"),
    (0x05f, "gfx9-4-generic"),
];

impl Target {
    /// Parses `e_flags`.
    pub(super) fn from_flags(flags: u32) -> Result<Self, CodeObjectError> {
        let machine = flags & 0xff;
        let Some((_, processor)) = MACHINES.iter().find(|(number, _)| *number == machine) else {
            return Err(CodeObjectError::Unsupported(format!("processor number 0x{machine:x}")));
        };
        Ok(Self {
            processor,
            xnack: Feature::from_bits(flags >> 8),
            sramecc: Feature::from_bits(flags >> 10),
            generic_version: (flags >> 24) as u8,
        })
    }

    /// Returns true if a device can run the code. `processor` and `generic` are the names of the device and of its generic
    /// target; `features` is the device's name with suffixes, as in gcnArchName.
    pub fn runs_on(&self, processor: &str, generic: &str, features: &str) -> bool {
        Self::name_fits(&self.to_string(), processor, generic, features)
    }

    /// Like [`Self::runs_on`], for a target given by name, such as `gfx90a:xnack-`.
    pub fn name_fits(target: &str, processor: &str, generic: &str, features: &str) -> bool {
        let mut parts = target.split(':');
        let named = parts.next().is_some_and(|name| name == processor || name == generic);
        named && parts.all(|feature| features.split(':').skip(1).any(|own| own == feature))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}{}{}", self.processor, self.sramecc.suffix("sramecc"), self.xnack.suffix("xnack"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_processor_and_features() {
        assert_eq!(Target::from_flags(0x41).unwrap().to_string(), "gfx1100");
        assert_eq!(Target::from_flags(0x63f).unwrap().to_string(), "gfx90a:xnack-");
        assert_eq!(Target::from_flags(0xf3f).unwrap().to_string(), "gfx90a:sramecc+:xnack+");
        let generic = Target::from_flags(0x0100_0054).unwrap();
        assert_eq!((generic.processor, generic.generic_version), ("gfx11-generic", 1));
        assert!(Target::from_flags(0xff).is_err());
    }

    #[test]
    fn exact_and_generic_fit() {
        let fits = |flags, processor, generic, name| {
            Target::from_flags(flags).unwrap().runs_on(processor, generic, name)
        };
        assert!(fits(0x41, "gfx1100", "gfx11-generic", "gfx1100"));
        assert!(fits(0x0100_0054, "gfx1100", "gfx11-generic", "gfx1100"));
        assert!(!fits(0x47, "gfx1100", "gfx11-generic", "gfx1100"));
        let (processor, generic, chip) = ("gfx90a", "gfx9-generic", "gfx90a:sramecc+:xnack-");
        assert!(fits(0x53f, processor, generic, chip), "any and any");
        assert!(fits(0x63f, processor, generic, chip), "xnack off");
        assert!(!fits(0x73f, processor, generic, chip), "xnack on");
        assert!(!fits(0x93f, processor, generic, chip), "sramecc off");
    }
}
