//! `analyze open`: serves a trace to ui.perfetto.dev on this machine, and ends when the page has fetched it.
//!
//! The page's content security policy lets it fetch from 127.0.0.1:9001 and no other port, so the port is fixed. The
//! answers carry what browsers ask of a server on the local network before a public page may read from it.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow, bail};
use tiny_http::{Header, Method, Request, Response, Server};

use super::load::load;
use super::{Outcome, note_host_only, note_losses};
use crate::export::perfetto;
use crate::symbols::Symbols;
use crate::timeline::Selection;

const PORT: u16 = 9001;
const PAGE: &str = "https://ui.perfetto.dev";

/// The options of `analyze open`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The page at ui.perfetto.dev runs in your browser and reads the trace from this machine (127.0.0.1:9001, the one port \
it may read from); nothing is uploaded. On a remote machine, forward the port first and open the link there:

  ssh -L 9001:127.0.0.1:9001 HOST analyze open --no-browser run.ktape")]
pub struct Args {
    /// A Perfetto trace (.pftrace, .pftrace.gz), or a tape or another tool's trace, which is turned into one first
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    /// Only print the link
    #[arg(long)]
    no_browser: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
}

/// Runs `analyze open`.
pub fn run(args: &Args) -> Result<Outcome> {
    if is_perfetto_trace(&args.input) && args.selection != Selection::default() {
        bail!("{}: is a Perfetto trace already, of which no part can be selected; name the tape", args.input.display());
    }
    // Before a long conversion, not after it.
    let server = listen()?;
    let (trace, outcome) = prepare(args)?;
    let name = trace.url_name();
    let link = format!("{PAGE}/#!/?url=http://127.0.0.1:{PORT}/{name}");
    writeln!(io::stdout().lock(), "{link}\nwaiting for the page to fetch the trace (Ctrl-C ends)")?;
    if !args.no_browser && open::that_detached(&link).is_err() {
        writeln!(io::stdout().lock(), "no browser could be started: open the link yourself")?;
    }
    serve(&server, &name, &trace.path)?;
    writeln!(io::stdout().lock(), "fetched")?;
    Ok(outcome)
}

fn listen() -> Result<Server> {
    Server::http(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))).map_err(|error| {
        anyhow!(
            "port {PORT} of this machine cannot be used: {error}; ui.perfetto.dev can fetch from no other, \
             so end what holds it (perhaps another `analyze open` or trace_processor), or open the file in the page"
        )
    })
}

/// The trace to be served.
struct Trace {
    path: PathBuf,
    /// Holds a trace that was made from a tape; it goes when we end.
    _made: Option<tempfile::TempDir>,
}

impl Trace {
    /// The file's name as part of a URL. The page shows it as the trace's title.
    fn url_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        name.chars().map(plain).collect()
    }
}

fn is_perfetto_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".pftrace") || name.ends_with(".pftrace.gz")
}

fn prepare(args: &Args) -> Result<(Trace, Outcome)> {
    if is_perfetto_trace(&args.input) {
        File::open(&args.input).with_context(|| args.input.display().to_string())?;
        return Ok((Trace { path: args.input.clone(), _made: None }, Outcome::Done));
    }
    let loaded = load(&args.input, &args.selection, &args.symbols)?;
    note_losses(&mut io::stdout(), &loaded)?;
    note_host_only(&mut io::stdout(), &loaded)?;
    let folder = tempfile::tempdir().context("a folder for the trace")?;
    let name = args.input.file_name().unwrap_or_default().to_string_lossy();
    let path = folder.path().join(format!("{name}.pftrace"));
    let written = File::create(&path).and_then(|file| perfetto::write(&loaded.timeline, BufWriter::new(file), false));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok((Trace { path, _made: Some(folder) }, loaded.outcome()))
}

/// Answers until the trace was fetched whole.
fn serve(server: &Server, name: &str, path: &Path) -> Result<()> {
    loop {
        let request = server.recv().context("the server ended")?;
        let wanted = request.url().trim_start_matches('/').split('?').next() == Some(name);
        match request.method() {
            Method::Get if wanted => {
                if send_file(request, path)? {
                    return Ok(());
                }
            }
            Method::Head if wanted => drop(answer(request, Response::empty(200), "application/octet-stream")),
            Method::Options => drop(answer(request, Response::empty(204), "text/plain")),
            _ => drop(answer(request, Response::from_string("not found").with_status_code(404), "text/plain")),
        }
    }
}

/// Sends the file; says whether all of it went out. A page that went away half-way may come again.
fn send_file(request: Request, path: &Path) -> Result<bool> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let bytes = file.metadata().with_context(|| path.display().to_string())?.len();
    let unsent = Arc::new(AtomicU64::new(bytes));
    let body = Counted { file, unsent: Arc::clone(&unsent) };
    let response = Response::new(200.into(), Vec::new(), body, usize::try_from(bytes).ok(), None);
    // In one piece, so that the page sees the length and can show how far it is.
    let response = response.with_chunked_threshold(usize::MAX);
    Ok(answer(request, response, "application/octet-stream").is_ok() && unsent.load(Ordering::Relaxed) == 0)
}

/// A file that knows how much of it was read: the server keeps to itself that a client hung up.
struct Counted {
    file: File,
    unsent: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.unsent.fetch_sub(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn answer<R: Read>(request: Request, response: Response<R>, content_type: &str) -> io::Result<()> {
    let headers = [
        ("Access-Control-Allow-Origin", PAGE),
        ("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS"),
        ("Access-Control-Allow-Headers", "*"),
        ("Access-Control-Allow-Private-Network", "true"),
        ("Cache-Control", "no-store"),
        ("Content-Type", content_type),
    ];
    let header = |(name, value): (&str, &str)| Header::from_bytes(name, value).expect("both are plain ASCII");
    request.respond(headers.into_iter().map(header).fold(response, Response::with_header))
}
