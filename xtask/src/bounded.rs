//! Runs a program with a time limit and kills every process that it leaves behind.
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Maximum time to wait for a killed process to exit and for its pipes to close.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which a running process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Output and exit status of a program.
pub struct Finished {
    pub stdout: String,
    pub stderr: String,
    /// `None` if the program was killed because it exceeded its time limit.
    pub status: Option<ExitStatus>,
}

/// Runs the program to its end. After `limit` it is killed with all processes that it has started.
///
/// # Errors
/// If the process cannot be started or waited for.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let begun = Instant::now();
    run_until(command, || begun.elapsed() >= limit)
}

/// Like [`run`], but kills the program as soon as `should_stop` returns true.
fn run_until(command: &mut Command, should_stop: impl Fn() -> bool) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only prctl is called, a system call that takes no lock.
    unsafe { command.pre_exec(die_with_parent) };
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let (stdout, stderr) = (spawn_reader(child.stdout.take()), spawn_reader(child.stderr.take()));
    let status = wait(&mut child, should_stop).with_context(|| format!("cannot wait for {program}"))?;
    // Processes that it left running would keep the pipes and the GPU open.
    kill_group(&child);
    if status.is_none() {
        let stopped = Instant::now();
        wait(&mut child, || stopped.elapsed() >= KILL_TIMEOUT)
            .with_context(|| format!("cannot wait for {program}"))?;
    }
    Ok(Finished { stdout: collect(&stdout), stderr: collect(&stderr), status })
}

/// Makes the calling process die with its parent: Ctrl-C in the terminal does not reach another process
/// group.
fn die_with_parent() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: prctl gets integer arguments only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn wait(child: &mut Child, should_stop: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if should_stop() {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn kill_group(child: &Child) {
    if let Ok(group) = libc::pid_t::try_from(child.id()) {
        // SAFETY: kill gets integer arguments only, and the group is the one that `run_until` created for the
        // child. Usually the group is empty by now; the error that kill returns then is ignored.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// Reads a pipe to its end on a separate thread, so that neither of the two pipes can fill up.
fn spawn_reader<R: Read + Send + 'static>(pipe: Option<R>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut part = [0; 1 << 14];
        let Some(mut pipe) = pipe else { return };
        // The receiver is gone if the process did not exit in time.
        while let Ok(count) = pipe.read(&mut part) {
            if count == 0 || send.send(part[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

/// Returns what was read from the pipe, up to its end or to the last data before a pause of `KILL_TIMEOUT`.
fn collect(pipe: &mpsc::Receiver<Vec<u8>>) -> String {
    let mut bytes = Vec::new();
    while let Ok(part) = pipe.recv_timeout(KILL_TIMEOUT) {
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_are_killed_at_the_limit() {
        // The limit is reached once the script has written its file, however long that takes.
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("written");
        let script = "echo started; tail -f /dev/null & echo $!; touch \"$0\"; wait";
        let mut command = Command::new("sh");
        let finished = run_until(command.args(["-c", script]).arg(&written), || written.exists()).unwrap();
        assert!(finished.status.is_none());
        let (started, child) = finished.stdout.trim().split_once('\n').unwrap();
        assert_eq!(started, "started");
        // The signal may take a while; afterwards the process is gone or a zombie.
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let dead = || state().is_empty() || state().contains(") Z ");
        let begun = Instant::now();
        while !dead() && begun.elapsed() < KILL_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
        assert!(dead(), "{}", state());
    }

    #[test]
    fn background_processes_are_killed_when_the_program_exits() {
        let begun = Instant::now();
        let finished =
            run(Command::new("sh").args(["-c", "tail -f /dev/null & echo done"]), KILL_TIMEOUT).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.status.unwrap().success()), ("done\n", true));
        assert!(begun.elapsed() < KILL_TIMEOUT);
    }
}
