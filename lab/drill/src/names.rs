//! Names of numbers: what C's headers call them, for scripts and for errors.

/// A name and its number.
type Named = (&'static str, i32);

/// The number of a name, in any table.
pub(crate) fn number(name: &str) -> Option<i64> {
    let tables = [CONSTANTS, OPTIONS, STATES, ERRORS];
    let mut all = tables.into_iter().flatten();
    all.find(|(other, _)| *other == name)
        .map(|(_, number)| i64::from(*number))
}

/// The name of an error number.
pub(crate) fn error_name(errno: i32) -> Option<&'static str> {
    let mut all = ERRORS.iter();
    all.find(|(_, number)| *number == errno)
        .map(|(name, _)| *name)
}

/// True if `name` is an errno constant.
pub(crate) fn is_error(name: &str) -> bool {
    ERRORS.iter().any(|(other, _)| *other == name)
}

macro_rules! table {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

const CONSTANTS: &[Named] = table! {
    AF_INET AF_INET6 SOCK_STREAM SOCK_DGRAM SOCK_NONBLOCK SOCK_CLOEXEC IPPROTO_TCP IPPROTO_UDP
    IPPROTO_IP IPPROTO_IPV6 F_GETFL F_SETFL O_RDWR O_NONBLOCK SHUT_RD SHUT_WR SHUT_RDWR
    MSG_DONTWAIT MSG_PEEK MSG_NOSIGNAL MSG_TRUNC MSG_MORE MSG_EOR MSG_ZEROCOPY
    EPOLL_CTL_ADD EPOLL_CTL_MOD EPOLL_CTL_DEL EPOLLIN EPOLLOUT EPOLLRDHUP EPOLLERR EPOLLHUP
    EPOLLET EPOLLONESHOT
};

const OPTIONS: &[Named] = &[
    ("SOL_SOCKET", libc::SOL_SOCKET),
    ("SOL_TCP", libc::IPPROTO_TCP),
    ("SOL_IP", libc::IPPROTO_IP),
    ("SOL_IPV6", libc::IPPROTO_IPV6),
    ("SO_ERROR", libc::SO_ERROR),
    ("SO_REUSEADDR", libc::SO_REUSEADDR),
    ("SO_REUSEPORT", libc::SO_REUSEPORT),
    ("SO_KEEPALIVE", libc::SO_KEEPALIVE),
    ("SO_SNDBUF", libc::SO_SNDBUF),
    ("SO_RCVBUF", libc::SO_RCVBUF),
    ("SO_LINGER", libc::SO_LINGER),
    ("SO_TYPE", libc::SO_TYPE),
    ("SO_PROTOCOL", libc::SO_PROTOCOL),
    ("SO_ACCEPTCONN", libc::SO_ACCEPTCONN),
    ("SO_ZEROCOPY", libc::SO_ZEROCOPY),
    ("IP_TOS", libc::IP_TOS),
    ("IPV6_TCLASS", libc::IPV6_TCLASS),
    ("TCP_NOTSENT_LOWAT", libc::TCP_NOTSENT_LOWAT),
    ("TCP_NODELAY", libc::TCP_NODELAY),
    ("TCP_MAXSEG", libc::TCP_MAXSEG),
    ("TCP_CORK", libc::TCP_CORK),
    ("TCP_KEEPIDLE", libc::TCP_KEEPIDLE),
    ("TCP_KEEPINTVL", libc::TCP_KEEPINTVL),
    ("TCP_KEEPCNT", libc::TCP_KEEPCNT),
    ("TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT),
    ("TCP_CONGESTION", libc::TCP_CONGESTION),
    ("TCP_QUICKACK", libc::TCP_QUICKACK),
    ("IPV6_V6ONLY", libc::IPV6_V6ONLY),
    ("POLLIN", libc::POLLIN as i32),
    ("POLLOUT", libc::POLLOUT as i32),
    ("POLLERR", libc::POLLERR as i32),
    ("POLLHUP", libc::POLLHUP as i32),
    ("POLLRDHUP", libc::POLLRDHUP as i32),
    ("FIONREAD", libc::FIONREAD as i32),
    ("SIOCINQ", libc::FIONREAD as i32),
    ("SIOCOUTQ", libc::TIOCOUTQ as i32),
    ("SIOCOUTQNSD", SIOCOUTQNSD),
];

/// `SIOCOUTQNSD`, bytes written and not sent: the kernel's `include/uapi/linux/sockios.h`.
pub const SIOCOUTQNSD: i32 = 0x894B;

/// States of a session as TCP_INFO numbers them: the kernel's `include/net/tcp_states.h`.
const STATES: &[Named] = &[
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_CLOSING", 11),
    // Phases of loss recovery: `enum tcp_ca_state`.
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
];

const ERRORS: &[Named] = table! {
    EAGAIN EALREADY EINPROGRESS EISCONN ENOTCONN ECONNREFUSED ECONNRESET ECONNABORTED ETIMEDOUT
    EHOSTUNREACH ENETUNREACH EPIPE EBADF EINVAL EADDRINUSE EADDRNOTAVAIL EOPNOTSUPP ENOPROTOOPT
    EAFNOSUPPORT EPROTONOSUPPORT EMSGSIZE ENOBUFS ENOTSOCK EDESTADDRREQ EMFILE ENOTTY EFAULT EINTR
    ENOMEM EEXIST ENOENT ENOSPC
};
