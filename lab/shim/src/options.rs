//! getsockopt(2) and setsockopt(2).

#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use crate::abi::User;
use crate::info;
use crate::shim::{self, c_result};
use libc::{c_int, c_void, socklen_t};
use sidecore_net_drill::files::{Answer, Errno, OptionValue};

/// The kernel's `include/uapi/asm-generic/socket.h` and `linux/tcp.h`, where libc has no name.
const SO_MEMINFO: c_int = 55;
const TCP_CC_INFO: c_int = 26;
/// Bytes of a congestion control's name: the kernel's `TCP_CA_NAME_MAX`.
const NAME_BYTES: usize = 16;

/// setsockopt(2).
pub(crate) unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if value.is_null() || len as usize > 4096 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: not null, and C says that there are `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
        let number = |at: usize| -> Answer<c_int> {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            four.map(c_int::from_ne_bytes).ok_or(Errno(libc::EINVAL))
        };
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => OptionValue::Linger(number(0)? != 0, number(4)?),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
                OptionValue::Name(String::from_utf8_lossy(name).into_owned())
            }
            // One byte will do for these, as on Linux: ip(7).
            (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_MTU_DISCOVER) if bytes.len() == 1 => {
                OptionValue::Number(c_int::from(bytes[0]))
            }
            _ => OptionValue::Number(number(0)?),
        };
        let set = shim.call(
            |_| false,
            None,
            |files| files.set_option(fd, level, name, &value),
        );
        set.map(|()| 0)
    };
    c_result(done())
}

/// getsockopt(2): numbers, and the structures of `TCP_INFO`, `TCP_CC_INFO` and `SO_MEMINFO`.
pub(crate) unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if value.is_null() || len.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let mut state = shim.lock();
        let files = &mut state.files;
        let bytes = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => info::tcp_info(&files.info(fd)?).to_vec(),
            // Neither CUBIC nor Reno has more to report, here as in the kernel.
            (libc::IPPROTO_TCP, TCP_CC_INFO) => files.info(fd).map(|_| Vec::new())?,
            (libc::SOL_SOCKET, SO_MEMINFO) => {
                let sizes = [libc::SO_RCVBUF, libc::SO_SNDBUF];
                let [receive, send] = sizes.map(|size| match files.option(fd, level, size) {
                    Ok(OptionValue::Number(bytes)) => bytes as u32,
                    _ => 0,
                });
                info::memory(&files.info(fd)?, receive, send).to_vec()
            }
            _ => match files.option(fd, level, name)? {
                OptionValue::Number(number) => number.to_ne_bytes().to_vec(),
                OptionValue::Linger(on, seconds) => {
                    [c_int::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat()
                }
                OptionValue::Name(name) => {
                    let mut bytes = name.into_bytes();
                    bytes.resize(NAME_BYTES, 0);
                    bytes
                }
                _ => return Err(Errno(libc::ENOPROTOOPT)),
            },
        };
        // SAFETY: C says that `len` points to the number of bytes at `value`; no more are written.
        unsafe {
            let fits = bytes.len().min(*len as usize);
            value
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), fits);
            *len = fits as socklen_t;
        }
        Ok(0)
    };
    c_result(done())
}
