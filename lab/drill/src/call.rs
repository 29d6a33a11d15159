//! A script's calls on the sockets.

use super::bytes::pattern;
use super::error::Problem;
use super::files::{Answer, Errno, OptionValue};
use super::flow::PORT;
use super::run::Run;
use super::script::{Call, Value};
use super::values::{Progress, Returned};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes that one call may read or write.
const LEN_MAX: i64 = 64 << 20;

impl Run<'_> {
    /// Does a call, or as much of it as can be done now.
    pub(super) fn call(
        &mut self,
        call: &Call,
        progress: &mut Progress,
    ) -> Result<Returned, Problem> {
        let arguments = Arguments { call };
        let fd = || arguments.small(0);
        let done = |answer: Answer<()>| answer.map(|()| 0);
        let answer = match call.name.as_str() {
            "socket" => {
                // The family is the script's, unless it is named.
                let family = match arguments.at(0)? {
                    Value::Usual if self.settings.v6 => libc::AF_INET6,
                    Value::Usual => libc::AF_INET,
                    _ => arguments.small(0)?,
                };
                let (kind, protocol) = (arguments.small(1)?, arguments.small(2)?);
                self.files.socket(family, kind, protocol).map(i64::from)
            }
            "bind" => {
                let address = self.address(&arguments, 1, self.any())?;
                let answer = self.files.bind(fd()?, address);
                if answer.is_ok() {
                    self.flows.listens_at = Some(address.port());
                }
                done(answer)
            }
            "listen" => done(self.files.listen(fd()?, arguments.small(1)?)),
            "accept" | "accept4" => {
                let flags = if arguments.has(3) {
                    arguments.small(3)?
                } else {
                    0
                };
                match self.files.accept(fd()?, flags) {
                    Ok((fd, _)) => {
                        self.begin_session(fd);
                        Ok(i64::from(fd))
                    }
                    Err(error) => Err(error),
                }
            }
            "connect" => {
                let address = self.address(&arguments, 1, self.settings.remote())?;
                self.connect(fd()?, address, progress)
            }
            "read" | "recv" | "recvfrom" => {
                let flags = if arguments.has(3) {
                    arguments.small(3)?
                } else {
                    0
                };
                return self.read(fd()?, arguments.len(2)?, flags);
            }
            "write" | "send" | "sendto" => return self.write(&arguments, progress),
            "close" => {
                let fd = fd()?;
                self.written.remove(&fd);
                self.read.remove(&fd);
                done(self.files.close(fd))
            }
            "shutdown" => done(self.files.shutdown(fd()?, arguments.small(1)?)),
            "setsockopt" => {
                let value = arguments.option_value(3)?;
                let (level, name) = (arguments.small(1)?, arguments.small(2)?);
                done(self.files.set_option(fd()?, level, name, &value))
            }
            "getsockopt" => {
                let (level, name) = (arguments.small(1)?, arguments.small(2)?);
                let answer = self.files.option(fd()?, level, name);
                return arguments.given(3, answer);
            }
            "fcntl" => self.fcntl(fd()?, &arguments)?,
            "ioctl" => {
                let request: i32 = arguments.small(1)?;
                let number = match request {
                    request if i64::from(request) == libc::FIONREAD as i64 => {
                        self.files.unread(fd()?)
                    }
                    request if i64::from(request) == libc::TIOCOUTQ as i64 => {
                        self.files.outstanding(fd()?)
                    }
                    super::names::SIOCOUTQNSD => self.files.unsent(fd()?),
                    _ => Err(Errno(libc::ENOTTY)),
                };
                let answer = number.map(|number| OptionValue::Number(number as i32));
                return arguments.given(2, answer);
            }
            "poll" => return self.poll(&arguments, progress),
            "epoll_create" => self.files.epoll_create().map(i64::from),
            "epoll_ctl" => {
                let (operation, fd) = (arguments.small(1)?, arguments.small(2)?);
                let (events, data) = match arguments.at(3) {
                    Ok(Value::Fields(_)) => arguments.epoll_event(3)?,
                    _ => (0, 0),
                };
                let epfd = arguments.small(0)?;
                done(self.files.epoll_ctl(epfd, operation, fd, events, data))
            }
            "epoll_wait" => return self.epoll_wait(&arguments, progress),
            name => return Err(Problem::Syntax(format!("there is no call `{name}`"))),
        };
        let waits = |error: Errno| {
            let later = error == Errno(libc::EAGAIN) || error == Errno(libc::EINPROGRESS);
            later && fd().is_ok_and(|fd| self.files.is_non_blocking(fd) == Ok(false))
        };
        Ok(match answer {
            Ok(value) => Returned::Value(value),
            Err(error) if waits(error) => Returned::Waits,
            Err(error) => Returned::Error(error),
        })
    }

    fn begin_session(&mut self, fd: i32) {
        self.newest = Some(fd);
        self.written.insert(fd, 0);
        self.read.insert(fd, 0);
    }

    fn any(&self) -> IpAddr {
        if self.settings.v6 {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        }
    }

    /// `...`, `"1.2.3.4:80"`, or C's fields.
    fn address(
        &self,
        arguments: &Arguments<'_>,
        at: usize,
        usual: IpAddr,
    ) -> Result<SocketAddr, Problem> {
        match arguments.at(at)? {
            Value::Usual => Ok(SocketAddr::new(usual, PORT)),
            Value::Text(text) => text
                .parse()
                .map_err(|_| arguments.wrong(at, "ADDRESS:PORT")),
            Value::Fields(fields) => {
                let mut address = SocketAddr::new(usual, PORT);
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("sin_port" | "sin6_port", Value::Number(port)) => {
                            let port = u16::try_from(*port);
                            address.set_port(port.map_err(|_| arguments.wrong(at, "a port"))?);
                        }
                        ("sin_addr" | "sin6_addr", Value::Text(ip)) => {
                            let ip = ip.parse();
                            address.set_ip(ip.map_err(|_| arguments.wrong(at, "an address"))?);
                        }
                        _ => {}
                    }
                }
                Ok(address)
            }
            _ => Err(arguments.wrong(at, "an address")),
        }
    }

    fn connect(&mut self, fd: i32, to: SocketAddr, progress: &mut Progress) -> Answer<i64> {
        if progress.begun {
            return self.files.connection(fd).map(|()| 0);
        }
        progress.begun = true;
        let answer = self.files.connect(fd, to).map(|()| 0);
        if !matches!(answer, Err(Errno(libc::EBADF))) && self.files.info(fd).is_ok() {
            self.newest = Some(fd);
            self.written.entry(fd).or_insert(0);
            self.read.entry(fd).or_insert(0);
        }
        answer
    }

    fn read(&mut self, fd: i32, len: usize, flags: i32) -> Result<Returned, Problem> {
        let mut bytes = vec![0; len];
        let waits = self.files.is_non_blocking(fd) == Ok(false) && flags & libc::MSG_DONTWAIT == 0;
        let (count, from) = match self.files.receive(fd, &mut bytes, flags) {
            Ok(received) => received,
            Err(Errno(libc::EAGAIN)) if waits => return Ok(Returned::Waits),
            Err(error) => return Ok(Returned::Error(error)),
        };
        // What the peer sent is a pattern; a datagram's begins anew.
        let place = if from.is_some() {
            0
        } else {
            self.read.get(&fd).copied().unwrap_or(0)
        };
        let held = bytes.iter().take(count);
        let right = held
            .zip(place..)
            .all(|(&byte, place)| byte == pattern(place));
        if from.is_none() && flags & libc::MSG_PEEK == 0 {
            self.read.insert(fd, place.wrapping_add(count as u32));
        }
        if !right {
            return Ok(Returned::Other(format!(
                "{count} bytes that are not what was sent"
            )));
        }
        Ok(Returned::Value(count as i64))
    }

    fn write(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &mut Progress,
    ) -> Result<Returned, Problem> {
        let (fd, len) = (arguments.small(0)?, arguments.len(2)?);
        let flags: i32 = if arguments.has(3) {
            arguments.small(3)?
        } else {
            0
        };
        let to = match arguments.has(4) {
            true => Some(self.address(arguments, 4, self.settings.remote())?),
            false => None,
        };
        let waits = self.files.is_non_blocking(fd) == Ok(false) && flags & libc::MSG_DONTWAIT == 0;
        let place = self.written.get(&fd).copied();
        // A datagram's pattern begins anew.
        let first = place.unwrap_or(0).wrapping_add(progress.written as u32);
        let bytes: Vec<u8> = (0..(len - progress.written) as u32)
            .map(|at| pattern(first.wrapping_add(at)))
            .collect();
        let answer = match to {
            Some(to) => self.files.send_to(fd, to, &bytes, flags),
            None => self.files.send(fd, &bytes, flags),
        };
        match answer {
            Ok(count) => progress.written += count,
            Err(Errno(libc::EAGAIN)) if waits => return Ok(Returned::Waits),
            Err(error) => return Ok(Returned::Error(error)),
        }
        if waits && progress.written < len {
            return Ok(Returned::Waits);
        }
        if let Some(place) = place {
            self.written
                .insert(fd, place.wrapping_add(progress.written as u32));
        }
        Ok(Returned::Value(progress.written as i64))
    }

    fn fcntl(&mut self, fd: i32, arguments: &Arguments<'_>) -> Result<Answer<i64>, Problem> {
        let command: i32 = arguments.small(1)?;
        Ok(match command {
            libc::F_GETFL => self
                .files
                .is_non_blocking(fd)
                .map(|on| i64::from(libc::O_RDWR | if on { libc::O_NONBLOCK } else { 0 })),
            libc::F_SETFL => {
                let flags: i32 = arguments.small(2)?;
                let on = flags & libc::O_NONBLOCK != 0;
                self.files.set_non_blocking(fd, on).map(|()| 0)
            }
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 0) = 1`
    fn poll(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &mut Progress,
    ) -> Result<Returned, Problem> {
        let Value::List(all) = arguments.at(0)? else {
            return Err(arguments.wrong(0, "a list of descriptors"));
        };
        let (mut count, mut other) = (0, None);
        for one in all {
            let Value::Fields(fields) = one else {
                return Err(arguments.wrong(0, "{fd=N, events=…, revents=…}"));
            };
            let of = |name: &str| fields.iter().find(|(other, _)| other == name);
            let number = |name: &str| match of(name) {
                Some((_, Value::Number(number))) => Ok(Some(*number)),
                None => Ok(None),
                Some(_) => Err(arguments.wrong(0, "numbers")),
            };
            let fd = number("fd")?.unwrap_or(-1) as i32;
            let events = number("events")?.unwrap_or(0) as i16;
            let revents = match self.files.poll(fd, events) {
                Ok(revents) => revents,
                Err(_) => libc::POLLNVAL,
            };
            count += i64::from(revents != 0);
            if let Some(wanted) = number("revents")?
                && wanted != i64::from(revents)
            {
                other = Some(Returned::Other(format!(
                    "revents {revents:#x} for descriptor {fd}"
                )));
            }
        }
        let timeout_ms: i64 = arguments.small(2)?;
        if count == 0 && self.waits_for(timeout_ms, progress) {
            return Ok(Returned::Waits);
        }
        Ok(other.unwrap_or(Returned::Value(count)))
    }

    /// `epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1`; events of 0 where nothing is ready.
    fn epoll_wait(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &mut Progress,
    ) -> Result<Returned, Problem> {
        let wanted = arguments.epoll_event(1)?;
        let (most, timeout_ms) = (arguments.len(2)?, arguments.small(3)?);
        let ready = match self.files.epoll_wait(arguments.small(0)?, most) {
            Ok(ready) => ready,
            Err(error) => return Ok(Returned::Error(error)),
        };
        if ready.is_empty() && self.waits_for(timeout_ms, progress) {
            return Ok(Returned::Waits);
        }
        match ready.first() {
            Some(&first) if first != wanted => Ok(Returned::Other(format!(
                "events {:#x} for descriptor {}",
                first.0, first.1
            ))),
            _ => Ok(Returned::Value(ready.len() as i64)),
        }
    }

    /// True if a call that found nothing ready goes on waiting.
    fn waits_for(&mut self, timeout_ms: i64, progress: &mut Progress) -> bool {
        if timeout_ms == 0 {
            return false;
        }
        let now_ns = self.files.host().now_ns();
        let ns = timeout_ms.unsigned_abs().saturating_mul(1_000_000);
        let until = progress.until_ns.get_or_insert(now_ns.saturating_add(ns));
        timeout_ms < 0 || now_ns < *until
    }
}

/// A call's arguments, by place.
struct Arguments<'c> {
    call: &'c Call,
}

impl Arguments<'_> {
    fn has(&self, at: usize) -> bool {
        self.call.arguments.len() > at
    }

    fn at(&self, at: usize) -> Result<&Value, Problem> {
        let value = self.call.arguments.get(at);
        value.ok_or_else(|| self.wrong(at, "something"))
    }

    fn wrong(&self, at: usize, wanted: &str) -> Problem {
        let name = &self.call.name;
        Problem::Syntax(format!("{name}: argument {} must be {wanted}", at + 1))
    }

    fn small<T: TryFrom<i64>>(&self, at: usize) -> Result<T, Problem> {
        match self.at(at)? {
            Value::Number(number) => {
                T::try_from(*number).map_err(|_| self.wrong(at, "a number in range"))
            }
            _ => Err(self.wrong(at, "a number")),
        }
    }

    fn len(&self, at: usize) -> Result<usize, Problem> {
        let len: i64 = self.small(at)?;
        if !(0..=LEN_MAX).contains(&len) {
            return Err(self.wrong(at, "0 to 67108864 bytes"));
        }
        Ok(len as usize)
    }

    /// `{events=EPOLLIN, fd=4}`: the events, and the data, which is the descriptor.
    fn epoll_event(&self, at: usize) -> Result<(u32, u64), Problem> {
        let wrong = || self.wrong(at, "{events=…, fd=N}");
        let Value::Fields(fields) = self.at(at)? else {
            return Err(wrong());
        };
        let number = |name: &str| match fields.iter().find(|(other, _)| other == name) {
            Some((_, Value::Number(number))) => Ok(*number),
            None => Ok(0),
            Some(_) => Err(wrong()),
        };
        Ok((number("events")? as u32, number("fd")? as u64))
    }

    /// `[1]`, `"cubic"`, or `{onoff=1, linger=0}`.
    fn option_value(&self, at: usize) -> Result<OptionValue, Problem> {
        let value = match self.at(at)? {
            Value::List(list) => list.first(),
            other => Some(other),
        };
        match value {
            Some(Value::Number(number)) => {
                let number = i32::try_from(*number);
                number
                    .map(OptionValue::Number)
                    .map_err(|_| self.wrong(at, "a number in range"))
            }
            Some(Value::Text(text)) => Ok(OptionValue::Name(text.clone())),
            Some(Value::Fields(fields)) => {
                let of = |name| match fields.iter().find(|(other, _)| other == name) {
                    Some((_, Value::Number(number))) => *number as i32,
                    _ => 0,
                };
                Ok(OptionValue::Linger(of("onoff") != 0, of("linger")))
            }
            _ => Err(self.wrong(at, "a value")),
        }
    }

    /// Compares a value that a call returned through an argument with the script's, where the
    /// script gives one.
    fn given(&self, at: usize, answer: Answer<OptionValue>) -> Result<Returned, Problem> {
        let got = match answer {
            Ok(got) => got,
            Err(error) => return Ok(Returned::Error(error)),
        };
        if *self.at(at)? == Value::Usual {
            return Ok(Returned::Value(0));
        }
        let wanted = self.option_value(at)?;
        if got == wanted {
            return Ok(Returned::Value(0));
        }
        Ok(Returned::Other(format!("{got:?} in argument {}", at + 1)))
    }
}
