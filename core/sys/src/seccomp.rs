//! System calls of other programs, handed to a supervisor: seccomp's user notifications.
//!
//! A thread puts a [`Filter`] over itself ([`install`]); it, and all that it starts from then on,
//! stop at the calls that the filter names until the holder of the [`Listener`] has answered.
//! Sources: seccomp(2), seccomp_unotify(2), `include/uapi/linux/seccomp.h`.
//!
//! Must stay true: a call that the filter does not name costs the same as before; an answer to a
//! caller that no longer exists is no error.
#![allow(unsafe_code)] // seccomp(2) and its ioctls take untyped requests

mod filter;

pub use filter::{Filter, When};

use crate::SysError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// Puts a filter over this thread and all threads and processes that it starts from now on.
///
/// Signals interrupt a caller that waits, as they do the kernel's own calls. The flag
/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (Linux 5.19) is left out: an answer may take as long as
/// a session takes to come (accept(2)), and a handler must run meanwhile. So the supervisor must
/// expect that the caller does not wait any more ([`Listener::answer`]), and that it makes the call
/// again.
///
/// Without CAP_SYS_ADMIN the thread gives up gaining privileges by executing files, as the kernel
/// demands.
///
/// # Errors
/// [`SysError::Call`]: `EBUSY` where this thread has a listener already, `EINVAL` where the kernel
/// has no user notifications (Linux 5.0).
pub fn install(filter: &Filter) -> Result<Listener, SysError> {
    let program = filter::assemble(filter);
    let program = libc::sock_fprog {
        // The kernel refuses programs of more than 4,096 instructions (BPF_MAXINSNS).
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut(),
    };
    let install = || {
        // SAFETY: `program` points to `len` instructions that live until the call returns; the
        // kernel copies and checks them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                ptr::from_ref(&program),
            )
        };
        RawFd::try_from(result).ok().filter(|file| *file >= 0)
    };
    let file = install().or_else(|| {
        // EACCES is the kernel's demand for one of the two: the capability or the renunciation.
        if io::Error::last_os_error().raw_os_error() != Some(libc::EACCES) {
            return None;
        }
        rustix::thread::set_no_new_privs(true).ok()?;
        install()
    });
    let Some(file) = file else {
        return Err(last("seccomp(SECCOMP_SET_MODE_FILTER)"));
    };
    let listener = Listener {
        // SAFETY: the kernel just made this descriptor (close-on-exec), which has no other owner.
        file: unsafe { OwnedFd::from_raw_fd(file) },
        failure: Cell::new(None),
    };
    // The caller waits for us, so we had better be run where it ran; older kernels cannot.
    let flags: u64 = SYNC_WAKE_UP;
    // SAFETY: this request takes its argument by value.
    unsafe { libc::ioctl(file, libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags) };
    Ok(listener)
}

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its name in answers.
    pub id: u64,
    /// The thread that made it.
    pub thread: i32,
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel is to run the call.
    Proceed,
    /// The call returns this.
    Value(i64),
    /// The call fails.
    Fail(Errno),
}

/// The descriptor that delivers calls. Readable when one waits, hung up when no process is left
/// under the filter.
///
/// A transient error of the kernel is not the callers': the kernel is asked again, for a quarter of
/// a second. Where that does not help, callers would wait for ever. So the supervisor looks at
/// [`Listener::failure`] now and then, and drops the listener.
#[derive(Debug)]
pub struct Listener {
    file: OwnedFd,
    failure: Cell<Option<(&'static str, Errno)>>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Listener {
    /// The next call, where one waits (the descriptor was readable); waits for one otherwise. None
    /// where its caller has ended meanwhile.
    ///
    /// # Errors
    /// [`SysError::Call`].
    pub fn receive(&self) -> Result<Option<Call>, SysError> {
        // SAFETY: plain numbers, for which zeros are values; the kernel asks for zeros.
        let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        let received = self.patiently(|| {
            // SAFETY: the kernel writes one `seccomp_notif`, whose size is in the request's number.
            let result = unsafe {
                libc::ioctl(
                    self.file.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_RECV,
                    &raw mut request,
                )
            };
            // A signal interrupts the wait for a call.
            returned(result).map_err(|error| match error {
                Errno::INTR => Errno::NOENT,
                error => error,
            })
        });
        match received {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => {
                return Err(SysError::Call {
                    call: RECEIVING,
                    source: error.into(),
                });
            }
        }
        Ok(Some(Call {
            id: request.id,
            thread: request.pid.cast_signed(),
            number: request.data.nr.into(),
            arguments: request.data.args,
        }))
    }

    /// Answers a call; false where its caller has ended, or a signal interrupted it.
    pub fn answer(&self, id: u64, answer: Answer) -> bool {
        let (value, error, flags) = match answer {
            Answer::Proceed => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Value(value) => (value, 0, 0),
            Answer::Fail(errno) => (0, -errno.raw_os_error(), 0),
        };
        let mut response = libc::seccomp_notif_resp {
            id,
            val: value,
            error,
            flags,
        };
        let answered = self.patiently(|| {
            // SAFETY: the kernel reads one `seccomp_notif_resp`.
            returned(unsafe {
                libc::ioctl(
                    self.file.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_SEND,
                    &raw mut response,
                )
            })
        });
        self.is_there(answered, ANSWERING)
    }

    /// True while the caller waits for an answer.
    #[must_use]
    pub fn is_waiting(&self, id: u64) -> bool {
        let looked = self.patiently(|| {
            // SAFETY: the kernel reads one number of 64 bits.
            returned(unsafe {
                libc::ioctl(
                    self.file.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                    ptr::from_ref(&id),
                )
            })
        });
        self.is_there(looked, LOOKING)
    }

    /// The reason why a caller may wait for an answer in vain: an answer could not be given, or it
    /// could not be seen whether the caller waits.
    #[must_use]
    pub fn failure(&self) -> Option<SysError> {
        let (call, errno) = self.failure.get()?;
        let source = errno.into();
        Some(SysError::Call { call, source })
    }

    /// True where the kernel knows a caller that waits; notes every error but that it knows none.
    fn is_there(&self, result: Result<i32, Errno>, call: &'static str) -> bool {
        match result {
            Ok(_) => true,
            // It has ended; or it has its answer, and has not run since.
            Err(Errno::NOENT | Errno::INPROGRESS) => false,
            Err(error) => {
                self.failure.set(Some((call, error)));
                false
            }
        }
    }

    /// Asks the kernel until it gives no error that may pass. Not for long where it has failed
    /// before: the end of all would take the time of each.
    fn patiently(&self, ask: impl FnMut() -> Result<i32, Errno>) -> Result<i32, Errno> {
        let patience = match self.failure.get() {
            Some(_) => Duration::ZERO,
            None => SHORTAGE_MAX,
        };
        patiently(patience, ask)
    }

    /// Copies memory of the thread that has made a call. A thread that waits has had its number all
    /// the time: that it waits is looked at behind the copy, each time.
    ///
    /// # Errors
    /// `EFAULT` where not all of it is there; `EPERM`; `ESRCH` where the caller does not wait any
    /// more: the copied bytes may then be another process's.
    pub fn read(&self, call: &Call, address: u64, target: &mut [u8]) -> Result<(), Errno> {
        let local = piece(target.as_mut_ptr(), target.len());
        let remote = piece(address_of(address), target.len());
        // SAFETY: the kernel writes into `target` alone.
        let count = unsafe {
            libc::process_vm_readv(call.thread, &raw const local, 1, &raw const remote, 1, 0)
        };
        // Looked at afterwards: the number may have become another process's during the copy.
        let copied = whole(count, target.len());
        if self.is_waiting(call.id) {
            copied
        } else {
            Err(Errno::SRCH)
        }
    }

    /// Opens the memory of the thread that has made a call, for writing.
    ///
    /// The file stands for one address space, even if the thread's number is reused. So it is
    /// opened first, and then checked that the caller waits: the memory is the caller's, or an
    /// error is returned. A number that is used twice, by process_vm_writev(2) say, could be
    /// another process's the second time.
    ///
    /// # Errors
    /// `ESRCH` where the caller does not wait any more; `EPERM`.
    pub fn memory(&self, call: &Call) -> Result<Memory, Errno> {
        let path = format!("/proc/{}/mem", call.thread);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        // Opened before the check: the order is what makes the check mean this file.
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => Errno::SRCH,
            error => error,
        })?;
        if self.is_waiting(call.id) {
            Ok(Memory(file))
        } else {
            Err(Errno::SRCH)
        }
    }

    /// Writes memory of the thread that waits for an answer.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn write(&self, call: &Call, address: u64, source: &[u8]) -> Result<(), Errno> {
        self.memory(call)?.write(address, source)
    }

    /// Gives a descriptor to a caller, in the place of its descriptor `at`.
    ///
    /// # Errors
    /// The kernel's: `ENOENT` where the caller has ended, `EMFILE` where it has no room.
    pub fn replace(
        &self,
        id: u64,
        file: BorrowedFd<'_>,
        at: i32,
        closes_on_exec: bool,
    ) -> Result<(), Errno> {
        self.add(id, file, Some(at), closes_on_exec, false)
            .map(drop)
    }

    /// Gives a descriptor to a caller, whose call returns its number.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn answer_with(
        &self,
        id: u64,
        file: BorrowedFd<'_>,
        closes_on_exec: bool,
    ) -> Result<i32, Errno> {
        self.add(id, file, None, closes_on_exec, true)
    }

    /// Gives a descriptor to a caller, whose call goes on waiting; its number there.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn give(&self, id: u64, file: BorrowedFd<'_>, closes_on_exec: bool) -> Result<i32, Errno> {
        self.add(id, file, None, closes_on_exec, false)
    }

    fn add(
        &self,
        id: u64,
        file: BorrowedFd<'_>,
        at: Option<i32>,
        closes_on_exec: bool,
        answers: bool,
    ) -> Result<i32, Errno> {
        let mut flags = 0;
        if at.is_some() {
            flags |= libc::SECCOMP_ADDFD_FLAG_SETFD as u32;
        }
        if answers {
            flags |= libc::SECCOMP_ADDFD_FLAG_SEND as u32;
        }
        let request = libc::seccomp_notif_addfd {
            id,
            flags,
            srcfd: file.as_raw_fd().cast_unsigned(),
            newfd: at.unwrap_or(0).cast_unsigned(),
            newfd_flags: if closes_on_exec {
                libc::O_CLOEXEC.cast_unsigned()
            } else {
                0
            },
        };
        // Other errors are for the caller, which may be short of memory by a limit of its own.
        patiently(Duration::ZERO, || {
            // SAFETY: the kernel reads one `seccomp_notif_addfd`.
            returned(unsafe {
                libc::ioctl(
                    self.file.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                    ptr::from_ref(&request),
                )
            })
        })
    }
}

/// Memory of the thread that has made a call.
#[derive(Debug)]
pub struct Memory(OwnedFd);

impl Memory {
    /// Writes all of `source` at `address`. A caller that has ended meanwhile has no memory.
    ///
    /// # Errors
    /// `EFAULT` where not all of it is there.
    pub fn write(&self, address: u64, source: &[u8]) -> Result<(), Errno> {
        let mut rest = source;
        let mut at = address;
        while !rest.is_empty() {
            match rustix::io::pwrite(&self.0, rest, at) {
                // A page that is not there, or that the caller may not write to itself.
                Ok(0) | Err(_) => return Err(Errno::FAULT),
                Ok(count) => {
                    rest = &rest[count..];
                    at += count.to_u64();
                }
            }
        }
        Ok(())
    }
}

/// Asks again while a signal comes in between, and for `patience` while memory is short.
fn patiently(
    patience: Duration,
    mut ask: impl FnMut() -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    let mut begun = None;
    let mut interrupted = 0;
    let mut is_patient = || begun.get_or_insert_with(Instant::now).elapsed() < patience;
    loop {
        match ask() {
            Err(Errno::INTR) if interrupted < INTERRUPTIONS_MAX => interrupted += 1,
            Err(Errno::NOMEM | Errno::AGAIN | Errno::NOBUFS) if is_patient() => {
                std::thread::sleep(SHORTAGE_PAUSE);
            }
            other => return other,
        }
    }
}

/// Result of a call.
fn returned(result: i32) -> Result<i32, Errno> {
    if result < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(result)
    }
}

fn piece(start: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast(),
        iov_len: bytes,
    }
}

/// An address of another process; this process never dereferences it.
fn address_of(address: u64) -> *mut u8 {
    ptr::without_provenance_mut(address.to_usize())
}

fn whole(count: isize, wanted: usize) -> Result<(), Errno> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::FAULT)),
    }
}

fn last(call: &'static str) -> SysError {
    SysError::Call {
        call,
        source: io::Error::last_os_error(),
    }
}

/// The requests, as errors name them.
const RECEIVING: &str = "ioctl(SECCOMP_IOCTL_NOTIF_RECV)";
const ANSWERING: &str = "ioctl(SECCOMP_IOCTL_NOTIF_SEND)";
const LOOKING: &str = "ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID)";
/// The longest time in which the kernel is asked again, and the pause in between: others wait
/// meanwhile.
const SHORTAGE_MAX: Duration = Duration::from_millis(250);
const SHORTAGE_PAUSE: Duration = Duration::from_millis(2);
/// Signals in a row that call one request away.
const INTERRUPTIONS_MAX: u32 = 1000;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`, Linux 6.6.
const SYNC_WAKE_UP: u64 = 1;

#[cfg(test)]
mod tests;
