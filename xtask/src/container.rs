//! `cargo xtask container`: builds the image of a worker with buildah, which needs no daemon, and checks it.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, cache_file, cargo, command, command_line, root, run};
use crate::setup;

const CONTAINERFILE: &str = "deploy/Containerfile";
/// Base image of the stage that compiles, and its Debian release.
const COMPILING: (&str, &str) = ("docker.io/library/rust:1-bookworm", "bookworm");
/// Base image of the result, and its Debian release.
const RUNNING: (&str, &str) = ("docker.io/library/debian:sid-slim", "sid");
/// Packages of the compiling image that a build may use.
const COMPILING_PACKAGES: &str = "ca-certificates,curl,g++,gcc,git,libc6-dev,make,python3";
/// User, entry point, stop signal and volumes that the image must declare, as buildah prints them.
const DECLARED: &str = "65534:65534 [worker] SIGTERM map[/models:{}]";
/// Libraries that the image must contain, with every function that the loader forwards.
const LIBRARIES: [&str; 4] = ["libamdhip64.so.6", "librocblas.so.4", "libMIOpen.so.1", "libhipblaslt.so.1"];
/// Folder of the libraries in the image.
const LIBRARY_FOLDER: &str = "/usr/lib/x86_64-linux-gnu";
/// Error of a worker that finds no GPU.
const NO_GPU: &str = "no AMD GPU was found";

#[derive(clap::Args)]
pub struct Args {
    /// Worker to build: llm-worker or sd-worker.
    #[arg(long, default_value = "llm-worker", value_parser = ["llm-worker", "sd-worker"])]
    worker: String,
    /// Architectures to compile kernels for, comma-separated [default: those of deploy/Containerfile].
    #[arg(long)]
    archs: Option<String>,
    /// Pull the base images from their registry instead of making them from Debian's packages and this Rust toolchain.
    #[arg(long)]
    pull: bool,
    /// Storage driver of buildah: vfs where overlays cannot be mounted [default: chosen by buildah].
    #[arg(long)]
    storage_driver: Option<String>,
}

/// Builds and checks the image.
///
/// # Errors
/// If a tool is missing, a step of the build fails, or the image does not run as its user.
pub fn execute(args: &Args) -> Result<()> {
    let start = Instant::now();
    setup::ensure(setup::CONTAINER)?;
    let builder = Builder::open(args.storage_driver.clone())?;
    if !args.pull {
        setup::ensure(setup::BASE_IMAGES)?;
        for (image, release) in [RUNNING, COMPILING] {
            if builder.text(&["images", "--quiet", image]).is_err() {
                builder.make_base(image, release)?;
            }
        }
    }
    builder.build(args)?;
    // One line for each name of the image.
    let sizes = builder.text(&["images", "--format", "{{.Size}}", &args.worker])?;
    let size = sizes.lines().next().unwrap_or_default().replace(' ', "");
    let container = builder.text(&["from", "--pull=never", &args.worker])?;
    let checked = builder.check(&args.worker, &container);
    builder.text(&["rm", &container])?;
    checked?;
    println!(
        "container: ok image={} size={size} user=65534 libraries={} seconds={}",
        args.worker,
        LIBRARIES.len(),
        start.elapsed().as_secs()
    );
    Ok(())
}

/// Runs buildah with separate images in the cache folder.
struct Builder {
    images: PathBuf,
    state: PathBuf,
    storage_driver: Option<String>,
}

impl Builder {
    fn open(storage_driver: Option<String>) -> Result<Self> {
        let folder = cache_file("container")?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { images: folder.join("images"), state: folder.join("state"), storage_driver })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut buildah = command("buildah", &["--root"]);
        buildah.arg(&self.images).arg("--runroot").arg(&self.state);
        if let Some(driver) = &self.storage_driver {
            buildah.arg("--storage-driver").arg(driver);
        }
        buildah.args(args);
        buildah
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        run(&mut self.command(args))
    }

    fn text(&self, args: &[&str]) -> Result<String> {
        text(&mut self.command(args))
    }

    /// Makes a replacement of a base image from Debian's packages, under the image's name.
    fn make_base(&self, image: &str, release: &str) -> Result<()> {
        let archive = cache_file(&format!("container/{release}.tar"))?;
        let mut bootstrap = command("mmdebstrap", &["--quiet", "--variant=minbase"]);
        bootstrap.arg(format!("--aptopt={}", apt_settings()?.display()));
        bootstrap
            .args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"]);
        if image == COMPILING.0 {
            bootstrap.arg(format!("--include={COMPILING_PACKAGES}"));
        }
        // The settings are those of this machine: builds receive them as a volume, and the image keeps none of them.
        bootstrap.arg(r#"--customize-hook=rm "$1"/etc/apt/apt.conf.d/99mmdebstrap"#);
        run(bootstrap.arg(release).arg(&archive))?;
        let container = self.text(&["from", "scratch"])?;
        let made = self.fill_base(&container, image, &archive);
        self.text(&["rm", &container])?;
        std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
        made
    }

    fn fill_base(&self, container: &str, image: &str, archive: &Path) -> Result<()> {
        run(self.command(&["add", "--quiet", container]).arg(archive).arg("/"))?;
        if image == COMPILING.0 {
            self.add_rust(container)?;
        }
        self.run(&["commit", "--quiet", container, image])
    }

    /// Adds this machine's Rust toolchain and rustup in the places of the official image, and the certificates that this
    /// machine trusts.
    fn add_rust(&self, container: &str) -> Result<()> {
        let version = text(&mut command("rustc", &["-vV"]))?;
        let (release, host) = release_and_host(&version)?;
        let toolchain = format!("/usr/local/rustup/toolchains/{release}-{host}");
        let sysroot = PathBuf::from(text(&mut command("rustc", &["--print", "sysroot"]))?);
        for folder in ["bin", "lib"] {
            let mut copy = self.command(&["copy", "--quiet", container]);
            run(copy.arg(sysroot.join(folder)).arg(format!("{toolchain}/{folder}")))?;
        }
        let rustup = cargo_home()?.join("bin/rustup");
        ensure!(rustup.exists(), "{} not found; install rustup, or use --pull", rustup.display());
        run(self.command(&["copy", "--quiet", container]).arg(rustup).arg("/usr/local/cargo/bin/rustup"))?;
        let certificates = "/etc/ssl/certs/ca-certificates.crt";
        if Path::new(certificates).exists() {
            self.run(&["copy", "--quiet", container, certificates, certificates])?;
        }
        let variables = [
            "RUSTUP_HOME=/usr/local/rustup".to_owned(),
            "CARGO_HOME=/usr/local/cargo".to_owned(),
            "PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                .to_owned(),
            format!("RUST_VERSION={release}"),
        ];
        for variable in &variables {
            self.run(&["config", "--env", variable, container])?;
        }
        let links = "cd /usr/local/cargo/bin && ln -s rustup cargo && ln -s rustup rustc && ln -s rustup rustdoc \
                     && rustup default \"$RUST_VERSION\"";
        self.run(&["run", "--isolation=chroot", container, "--", "sh", "-c", links])
    }

    fn build(&self, args: &Args) -> Result<()> {
        let mut build = self.command(&["bud", "--isolation=chroot", "--layers", "--file", CONTAINERFILE]);
        build.args(["--tag", &args.worker, "--build-arg", &format!("WORKER={}", args.worker)]);
        if let Some(archs) = &args.archs {
            build.args(["--build-arg", &format!("CANDLE_ROCM_ARCHS={archs}")]);
        }
        if args.pull {
            build.arg("--pull=always");
        } else {
            let settings = apt_settings()?;
            build.arg("--pull=never");
            build.arg(format!("--volume={}:/etc/apt/apt.conf.d/99host:ro", settings.display()));
        }
        run(build.arg(root()))
    }

    /// Checks what the image declares, its libraries, and that its user can write to the volume and start the worker.
    fn check(&self, image: &str, container: &str) -> Result<()> {
        let format = "{{with .OCIv1.Config}}{{.User}} {{.Entrypoint}} {{.StopSignal}} {{.Volumes}}{{end}}";
        let declared = self.text(&["inspect", "--type", "image", "--format", format, image])?;
        ensure!(declared == DECLARED, "the image declares {declared}; expected {DECLARED}");

        let build = ["build", "--package=rocm-loader", "--bin=check-symbols"];
        let program = process::build_programs(&mut cargo(&build))?;
        let program = format!("--volume={}:/check-symbols:ro", program("check-symbols")?.display());
        let mut words = vec!["run", "--isolation=chroot", &program, container, "--", "/check-symbols"];
        let libraries = LIBRARIES.map(|name| format!("{LIBRARY_FOLDER}/{name}"));
        words.extend(libraries.iter().map(String::as_str));
        self.run(&words)?;

        let script = "id -u && touch /models/probe && rm /models/probe && worker --help";
        let help = self.text(&["run", "--isolation=chroot", container, "--", "sh", "-c", script])?;
        ensure!(help.starts_with("65534\n"), "the image runs as user {help}; expected 65534");
        if Path::new("/dev/kfd").exists() {
            eprintln!("skipped the start without a GPU: this machine has /dev/kfd");
            return Ok(());
        }
        let mut start = self.command(&["run", "--isolation=chroot", "--env=HOST=127.0.0.1"]);
        start.args(["--env=MODEL=/models/none", "--env=MODEL_PATH=/models/none", container]);
        let started = start.args(["--", "worker", "--port", "0"]).output().context("cannot start buildah")?;
        let log = [started.stdout, started.stderr].concat();
        let log = String::from_utf8_lossy(&log);
        eprint!("{log}");
        ensure!(
            log.contains(NO_GPU),
            "the worker started without a GPU; expected an error with \"{NO_GPU}\""
        );
        ensure!(!started.status.success(), "the worker exited with status 0 without a GPU; expected 1");
        Ok(())
    }
}

/// Writes the download settings of this machine's apt, such as proxies, to a file.
fn apt_settings() -> Result<PathBuf> {
    let settings = text(&mut command("apt-config", &["dump", "Acquire"]))?;
    let file = cache_file("container/apt.conf")?;
    std::fs::write(&file, settings + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("CARGO_HOME") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set; set CARGO_HOME")?;
    Ok(Path::new(&home).join(".cargo"))
}

/// Returns the release and the host in the output of `rustc -vV`, such as 1.95.0 and x86_64-unknown-linux-gnu.
fn release_and_host(version: &str) -> Result<(&str, &str)> {
    let field = |name| version.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match (field("release"), field("host")) {
        (Some(release), Some(host)) => Ok((release, host)),
        _ => bail!("rustc -vV reported no release or no host: {version}"),
    }
}

/// Runs a command and returns its standard output without the last line break.
fn text(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    let output = command.output().with_context(|| format!("cannot start: {line}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "failed ({}): {line}: {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containerfile() -> String {
        std::fs::read_to_string(root().join(CONTAINERFILE)).unwrap()
    }

    #[test]
    fn base_images_are_those_of_the_containerfile() {
        let text = containerfile();
        let images = text.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next());
        assert_eq!(images.collect::<Vec<_>>(), [COMPILING.0, RUNNING.0]);
    }

    #[test]
    fn the_image_installs_the_compiler_that_the_commands_install() {
        let text = containerfile();
        let mut lines = text
            .lines()
            .filter_map(|line| line.split_once("--no-install-recommends ")?.1.strip_suffix(" \\"));
        let installed: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let (in_base, missing): (Vec<&str>, Vec<&str>) = setup::packages(setup::KERNELS)
            .into_iter()
            .partition(|package| COMPILING_PACKAGES.split(',').any(|base| base == *package));
        assert_eq!((in_base, missing), (vec!["gcc", "libc6-dev"], installed));
    }

    #[test]
    fn release_and_host_are_read() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(release_and_host(text).unwrap(), ("1.95.0", "x86_64-unknown-linux-gnu"));
        assert!(release_and_host("rustc 1.95.0").unwrap_err().to_string().contains("rustc 1.95.0"));
    }
}
