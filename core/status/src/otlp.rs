//! Metrics pushed to an OpenTelemetry collector, where the environment names one (OTLP over HTTP,
//! in JSON).
//!
//! Why here: a site with a collector names it to all its services by variables, and scrapes none.
//! One request an interval, of counters that are here already, needs no SDK with its runtime.
//! Must stay true: without the variables nothing starts; a collector that is away, slow or hostile
//! costs this thread its time and the log a line. Any thread. Source: OpenTelemetry, "Protocol
//! Exporter" and "Environment Variable Specification"; OTLP 1, "OTLP/HTTP"; RFC 9112.

use crate::Status;
use crate::manager::Stop;
use crate::metrics::attribute;
use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pushes the metrics of a server at intervals, until it is dropped.
#[derive(Debug)]
pub(crate) struct Push(Arc<Stop>);

impl Push {
    /// Begins, where `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` names a
    /// collector, on a thread of its own. Variables that cannot be followed are logged, at level
    /// `warn`, and nothing is pushed.
    #[must_use]
    pub(crate) fn by_environment(status: &Arc<Status>) -> Option<Self> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let target = Target::of(&get).unwrap_or_else(|error| {
            tracing::warn!("metrics are not pushed: {error}");
            None
        })?;
        let stop = Arc::new(Stop::default());
        let (status, its_stop) = (Arc::clone(status), Arc::clone(&stop));
        let started = std::thread::Builder::new()
            .name("otlp".into())
            .spawn(move || target.push_until(&status, &its_stop));
        match started {
            Ok(_) => Some(Self(stop)),
            Err(error) => {
                tracing::warn!("metrics are not pushed: no thread: {error}");
                None
            }
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        // Not joined: the collector or the status may hang.
        self.0.end();
    }
}

/// The variables of the environment, by name; none where one is not set or empty.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A collector, and the rules by which it gets metrics.
#[derive(Debug)]
struct Target {
    url: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes of the process that pushes.
    resource: Vec<(String, String)>,
    every: Duration,
    /// The longest time of one push.
    patience: Duration,
}

impl Target {
    /// The collector that the variables name, if they do.
    fn of(get: Variables<'_>) -> Result<Option<Self>, String> {
        let is_off = get("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
        let exporters = get("OTEL_METRICS_EXPORTER");
        let is_other = exporters.is_some_and(|it| it.split(',').all(|one| one.trim() != "otlp"));
        // What is said of metrics alone comes before what is said of all signals.
        let own = |name: &str| {
            let of_metrics = get(&format!("OTEL_EXPORTER_OTLP_METRICS_{name}"));
            of_metrics.or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let of_all = || {
            let base = get("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(format!("{}/v1/metrics", base.trim_end_matches('/')))
        };
        let url = get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").or_else(of_all);
        let Some(url) = url.filter(|_| !is_off && !is_other) else {
            return Ok(None);
        };
        if own("PROTOCOL").is_some_and(|protocol| protocol == "grpc") {
            return Err("OTEL_EXPORTER_OTLP_PROTOCOL is grpc; write http/json".into());
        }
        let headers = pairs(&own("HEADERS").unwrap_or_default());
        let headers = headers.into_iter().map(|(name, value)| {
            let name: Option<HeaderName> = name.parse().ok();
            let value = HeaderValue::from_str(&value).ok();
            // The value may be a secret.
            name.zip(value)
                .ok_or("OTEL_EXPORTER_OTLP_HEADERS has a header that is none")
        });
        Ok(Some(Self {
            url: http_url(&url)?,
            headers: headers.collect::<Result<_, _>>()?,
            resource: resource(get),
            every: time(
                "OTEL_METRIC_EXPORT_INTERVAL",
                get("OTEL_METRIC_EXPORT_INTERVAL"),
                EVERY,
            )?,
            patience: time("OTEL_EXPORTER_OTLP_TIMEOUT", own("TIMEOUT"), PATIENCE)?,
        }))
    }

    fn push_until(&self, status: &Status, stop: &Stop) {
        let mut was_well = true;
        loop {
            let pushed = self.push(status);
            // A line for each change: a collector may be away for days.
            match &pushed {
                Err(error) if was_well => {
                    tracing::warn!("metrics do not reach {}: {error}; tried again", self.host());
                }
                Ok(()) if !was_well => tracing::warn!("metrics reach {} again", self.host()),
                _ => {}
            }
            was_well = pushed.is_ok();
            if stop.comes_before(Instant::now() + self.every) {
                return;
            }
        }
    }

    /// Host and port, as in the URL.
    fn host(&self) -> &str {
        self.url.authority().map_or("", |it| it.as_str())
    }

    /// Pushes once. Blocks, for the patience at most beyond the look-up of the host's name.
    fn push(&self, status: &Status) -> io::Result<()> {
        let body = self.body(status).to_string();
        let path = self.url.path_and_query().map_or("/", |it| it.as_str());
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n",
            self.host(),
            body.len()
        )
        .into_bytes();
        for (name, value) in &self.headers {
            let line = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"];
            request.extend(line.concat());
        }
        request.extend(b"\r\n");
        request.extend(body.as_bytes());
        let end = Instant::now() + self.patience;
        let mut stream = self.connect(end)?;
        send(&mut stream, &request, end)?;
        match code(&mut stream, end)? {
            200..=299 => Ok(()),
            code => Err(io::Error::other(format!("it answers with status {code}"))),
        }
    }

    fn connect(&self, end: Instant) -> io::Result<TcpStream> {
        let host = self.url.host().unwrap_or_default();
        // An IPv6 address stands in brackets in a URL.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.url.port_u16().unwrap_or(80);
        let mut last = io::Error::new(ErrorKind::NotFound, "its name has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(end)?) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The metrics of now, as an `ExportMetricsServiceRequest`.
    fn body(&self, status: &Status) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        let started_ns = status.started_unix_s().saturating_mul(1_000_000_000);
        let families = status.families();
        let metrics: Vec<Value> = families
            .iter()
            .filter_map(|family| family.otlp((started_ns, now_ns)))
            .collect();
        let resource = self.resource.iter();
        let resource: Vec<Value> = resource.map(|(key, text)| attribute(key, text)).collect();
        let scope = json!({"name": "sidecore", "version": env!("CARGO_PKG_VERSION")});
        json!({"resourceMetrics": [{
            "resource": {"attributes": resource},
            "scopeMetrics": [{"scope": scope, "metrics": metrics}],
        }]})
    }
}

/// The URL of a collector.
fn http_url(text: &str) -> Result<Uri, String> {
    let url: Option<Uri> = text.parse().ok();
    let is_taken = |url: &Uri| {
        let is_user = url.authority().is_some_and(|it| it.as_str().contains('@'));
        url.scheme_str() == Some("http") && url.host().is_some_and(|it| !it.is_empty()) && !is_user
    };
    // Not shown: it may hold a secret.
    url.filter(is_taken).ok_or_else(|| {
        "OTEL_EXPORTER_OTLP_ENDPOINT is not http://HOST:PORT; a collector on this machine can pass \
         metrics on over TLS"
            .into()
    })
}

/// The attributes of this process: those that are given, its name and its number.
fn resource(get: Variables<'_>) -> Vec<(String, String)> {
    let mut all = pairs(&get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
    let is_named = all.iter().any(|(key, _)| key == SERVICE_NAME);
    let name = get("OTEL_SERVICE_NAME").or_else(|| (!is_named).then(|| "sidecore".into()));
    if let Some(name) = name {
        all.retain(|(key, _)| key != SERVICE_NAME);
        all.push((SERVICE_NAME.into(), name));
    }
    all.push(("service.instance.id".into(), std::process::id().to_string()));
    all
}

/// `KEY=VALUE,KEY=VALUE`, with `%2C` and the like in values.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let decoded = pairs.map(|(key, value)| {
        let value = percent_decode_str(value.trim()).decode_utf8_lossy();
        (key.trim().to_owned(), value.into_owned())
    });
    decoded.collect()
}

/// A time in milliseconds, between a tenth of a second and a day.
fn time(name: &str, text: Option<String>, unless_given: Duration) -> Result<Duration, String> {
    let Some(text) = text else {
        return Ok(unless_given);
    };
    let ms: Result<u64, _> = text.trim().parse();
    let ms = ms.map_err(|_| format!("{name} is no number of milliseconds"))?;
    Ok(Duration::from_millis(ms.clamp(100, 86_400_000)))
}

/// The time that is left.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(
            ErrorKind::TimedOut,
            "it does not answer in time",
        )),
        false => Ok(left),
    }
}

/// Sends all bytes. The time is that of all writes: a collector that takes a few bytes now and then
/// gets no more of it.
fn send(stream: &mut TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True where `left` says when it has been too long.
fn is_passing(error: &io::Error) -> bool {
    [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind())
}

/// The status code of an answer, whose body is not read.
fn code(stream: &mut TcpStream, end: Instant) -> io::Result<u16> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        let read = match stream.read(&mut piece) {
            Ok(read) => read,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&piece[..read]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => return Ok(response.code.unwrap_or_default()),
            Ok(httparse::Status::Partial) if read > 0 && bytes.len() < HEAD_BYTES_MAX => {}
            _ => {
                let said = "its answer is not HTTP";
                return Err(io::Error::new(ErrorKind::InvalidData, said));
            }
        }
    }
}

/// The attribute that names a service.
const SERVICE_NAME: &str = "service.name";
/// The interval and the patience that the specification names.
const EVERY: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of an answer, and the most headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    //! A collector on the loopback, and variables that are no process's.

    use super::*;
    use crate::Kind;
    use crate::metrics::{Metric, Unit};
    use std::net::TcpListener;
    use std::sync::mpsc::RecvTimeoutError;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Target>, String> {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Target::of(&get)
    }

    const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

    fn status() -> Arc<Status> {
        let fields = || json!({"read": u64::MAX, "memory": 7});
        Status::new(Kind::Image, "a", fields).with_metrics(|fields| {
            let read = Metric::counter("image_read", "Bytes.").in_unit(Unit::Bytes);
            vec![
                read.sample(&[("image", "a")], &fields["memory"])
                    .sample(&[("image", "b")], &fields["read"]),
                Metric::gauge("nothing", "None."),
            ]
        })
    }

    /// The head and the body of a request, which is answered.
    fn request(listener: &TcpListener, answer: &[u8]) -> (String, String) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = String::new();
        loop {
            let mut piece = [0; 512];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "it ends early: {text}");
            text += std::str::from_utf8(&piece[..read]).unwrap();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && head.contains(&format!("Content-Length: {}\r\n", body.len()))
            {
                // The client may have seen enough.
                stream.write_all(answer).ok();
                return (head.to_owned(), body.to_owned());
            }
        }
    }

    #[test]
    fn variables_name_a_collector_or_none() {
        assert!(of(&[]).unwrap().is_none());
        let both = (ENDPOINT, "http://localhost:4318/");
        for off in [
            ("OTEL_SDK_DISABLED", "TRUE"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_METRICS_EXPORTER", "prometheus, console"),
        ] {
            assert!(of(&[both, off]).unwrap().is_none(), "{off:?}");
        }
        let target = of(&[both]).unwrap().unwrap();
        assert_eq!(target.url, "http://localhost:4318/v1/metrics");
        assert_eq!((target.every, target.patience), (EVERY, PATIENCE));
        let exact = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://[::1]:9/x");
        let target = of(&[
            both,
            exact,
            ("OTEL_METRICS_EXPORTER", "console,otlp"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=a%2Cb, x-more = c"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,zone=b%20c"),
            ("OTEL_SERVICE_NAME", "images"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "18446744073709551615"),
        ]);
        let target = target.unwrap().unwrap();
        assert_eq!(target.url, "http://[::1]:9/x");
        assert_eq!(target.every, Duration::from_millis(250));
        assert_eq!(target.patience, Duration::from_secs(86_400));
        let headers: Vec<_> = target.headers.iter().map(|(_, it)| it.as_bytes()).collect();
        assert_eq!(headers, [&b"a,b"[..], b"c"]);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            target.resource[..2],
            [pair("zone", "b c"), pair("service.name", "images")]
        );
        for (name, value) in [
            (ENDPOINT, "https://a:1"),
            (ENDPOINT, "http://user:secret@a:1"),
            (ENDPOINT, "a b"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0aHost: secret"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "soon"),
        ] {
            let error = of(&[(name, value), both]).unwrap_err();
            assert!(error.contains(name), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_collector_gets_what_was_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let header = ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=7");
        let target = of(&[(ENDPOINT, url.as_str()), header]).unwrap().unwrap();
        let stop = Stop::default();
        std::thread::scope(|scope| {
            scope.spawn(|| target.push_until(&status(), &stop));
            let (head, body) = request(&listener, b"HTTP/1.1 200 OK\r\n\r\n{}");
            stop.end();
            assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nx-key: 7"), "{head}");
            let body: Value = serde_json::from_str(&body).unwrap();
            let resource = &body["resourceMetrics"][0];
            let name = attribute(SERVICE_NAME, "sidecore");
            assert_eq!(resource["resource"]["attributes"][0], name);
            let metrics = resource["scopeMetrics"][0]["metrics"].as_array().unwrap();
            assert_eq!(metrics.len(), 2, "{body}");
            assert_eq!(metrics[0]["unit"], "s");
            let read = &metrics[1];
            assert_eq!(read["name"], "sidecore_image_read_bytes");
            assert_eq!(
                (&read["unit"], &read["sum"]["isMonotonic"]),
                (&"By".into(), &true.into())
            );
            let points = read["sum"]["dataPoints"].as_array().unwrap();
            assert_eq!(points[0]["asInt"], "7");
            assert_eq!(points[0]["attributes"][0], attribute("image", "a"));
            assert!(points[1]["asDouble"].as_f64() > Some(1e19), "{body}");
        });
    }

    #[test]
    fn a_collector_that_fails_is_an_error_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut target = of(&[(ENDPOINT, url.as_str())]).unwrap().unwrap();
        let long = [b"HTTP/1.1 200 OK\r\nA: ", &[b'a'; HEAD_BYTES_MAX][..]].concat();
        for (answer, wanted) in [
            (&b"HTTP/1.1 503 Busy\r\n\r\n"[..], "status 503"),
            (b"HTTP/1.1 200", "not HTTP"),
            (b"\x16\x03\x01", "not HTTP"),
            (b"", "not HTTP"),
            (&long[..], "not HTTP"),
        ] {
            let pushed = std::thread::scope(|scope| {
                scope.spawn(|| request(&listener, answer));
                target.push(&status())
            });
            let error = pushed.unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        // It takes the connection, in its queue, and says nothing.
        target.patience = Duration::from_millis(200);
        assert_eq!(
            target.push(&status()).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        drop(listener);
        assert!(target.push(&status()).is_err());
    }

    /// More than the sockets hold, to a collector that needs ten seconds and more for it.
    #[test]
    fn a_collector_that_takes_little_at_a_time_gets_no_more_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut taker, _) = listener.accept().unwrap();
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut piece = vec![0; 64 << 10];
                let pause = Duration::from_millis(10);
                while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    // The other end may be closed already.
                    let _taken = taker.read(&mut piece);
                }
            });
            let end = Instant::now() + Duration::from_millis(300);
            let sent = send(&mut stream, &vec![b'a'; 64 << 20], end);
            // Ends the taker, also where the next line panics.
            drop((over, stream));
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::TimedOut);
        });
    }
}
