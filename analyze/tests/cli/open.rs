//! `analyze open` from the browser's side: what the page at ui.perfetto.dev asks, in its order, by plain TCP.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

const PORT: u16 = 9001;

fn open(trace: &std::path::Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_analyze"))
        .args(["open", "--no-browser"])
        .arg(trace)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ask(request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: 127.0.0.1:9001\r\nOrigin: https://ui.perfetto.dev\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Head, in lower case, and body of the answer.
fn answer(request: &str) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    ask(request).read_to_end(&mut bytes).unwrap();
    let end =
        bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| panic!("{request}: no whole head"));
    (String::from_utf8_lossy(&bytes[..end]).to_lowercase(), bytes.split_off(end + 4))
}

// One test: there is one port.
#[test]
fn serves_the_trace_to_the_page_and_ends_when_it_has_it() {
    let Ok(taken) = TcpListener::bind(("127.0.0.1", PORT)) else {
        writeln!(std::io::stderr(), "SKIPPED: port {PORT} is in use").unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("my run.pftrace");
    let content: Vec<u8> = (0..32_000_000_u32).map(|n| (n >> 3) as u8).collect();
    std::fs::write(&trace, &content).unwrap();

    let output = open(&trace).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: port 9001 of this machine cannot be used"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    drop(taken);

    let mut child = open(&trace);
    let mut link = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut link).unwrap();
    assert_eq!(link, "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/my_run.pftrace\n");

    let (head, _) = answer("OPTIONS /my_run.pftrace");
    assert!(head.starts_with("http/1.1 204"), "{head}");
    assert!(head.contains("access-control-allow-origin: https://ui.perfetto.dev"), "{head}");
    assert!(head.contains("access-control-allow-private-network: true"), "{head}");
    let (head, _) = answer("GET /../secrets");
    assert!(head.starts_with("http/1.1 404"), "{head}");

    // A page that is closed half-way has not fetched the trace: it may come again.
    let mut first = [0; 1000];
    ask("GET /my_run.pftrace").read_exact(&mut first).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it waits on");

    let (head, body) = answer("GET /my_run.pftrace");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("access-control-allow-origin: https://ui.perfetto.dev"), "{head}");
    assert!(head.contains("content-type: application/octet-stream"), "{head}");
    assert!(body == content, "the trace, whole");
    assert!(child.wait().unwrap().success());
}
