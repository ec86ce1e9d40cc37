//! Who may come in: TLS, tokens, and what a worker refuses to serve.

use std::time::{Duration, Instant};

use crate::support::process::{Process, command};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rlox_core::testing::assert_rejects;
use rlox_core::{Error, ResetOptions, Result, Seeds, VectorEnv};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A certificate for `localhost`, its key, and who signed it, as PEM.
fn certificate(expired: bool) -> [String; 3] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    if expired {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, &ca).unwrap();
    [signed.pem(), key.serialize_pem(), ca.pem()]
}

struct Files {
    _folder: tempfile::TempDir,
    cert: String,
    key: String,
    token: String,
    ca: String,
}

fn files(expired: bool) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key, ca] = certificate(expired);
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (cert, key, token) = (write("cert", &cert), write("key", &key), write("token", &format!("{TOKEN}\n")));
    Files { cert, key, token, ca, _folder: folder }
}

fn served(files: &Files) -> Process {
    let Files { cert, key, token, .. } = files;
    Process::start(&["--bind", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--token-file", token])
}

fn options(files: &Files) -> ClientOptions {
    let tls_ca = Some(files.ca.clone());
    ClientOptions { token: Some(TOKEN.into()), tls_ca, connect_timeout: Duration::from_secs(2), ..Default::default() }
}

fn tried(address: &str, options: &ClientOptions) -> Result<RemoteVecEnv> {
    let start = Instant::now();
    let made = RemoteVecEnv::new(&[address], &EnvOptions::new("CartPole-v1", 1, 0), options);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    made
}

/// Checks that no connection is made, for the reasons and with the address in the text of the transport.
fn refused(address: &str, options: &ClientOptions, says: &[&str]) {
    let error = tried(address, options).unwrap_err().to_string();
    for said in says.iter().chain(&[address]) {
        assert!(error.contains(said), "{said:?} is not in {error:?}");
    }
}

#[test]
fn with_tls_and_the_token_it_serves_beyond_loopback() {
    let files = files(false);
    let worker = served(&files);
    let port = worker.address.rsplit(':').next().unwrap();
    let address = format!("https://localhost:{port}");
    let mut env = tried(&address, &options(&files)).unwrap();
    env.reset(Seeds::Base(0), None, &ResetOptions::default(), &mut [0.0; 4]).unwrap();
    let with = |token: Option<&str>| ClientOptions { token: token.map(str::to_owned), ..options(&files) };
    for (token, got) in [
        (None, "no token"),
        (Some("0123456789abcdef0123456789abcdeF"), "a different token"),
        (Some(""), "a different token"),
    ] {
        let rejected = assert_rejects(tried(&address, &with(token)), Error::Config, "token");
        assert!(rejected.got == got && rejected.expected.contains(&address), "{rejected}");
        assert!(rejected.hint.contains("--token-file"), "{rejected}");
    }
    let plain = format!("http://localhost:{port}");
    refused(&plain, &options(&files), &["TLS"]);
    let named = format!("https://127.0.0.1:{port}");
    refused(&named, &options(&files), &["certificate"]);
    tried(&named, &ClientOptions { tls_domain: Some("localhost".into()), ..options(&files) }).unwrap();
    let stranger = ClientOptions { tls_ca: Some(certificate(false)[2].clone()), ..options(&files) };
    refused(&address, &stranger, &["certificate"]);
    let absent = tried(&address, &ClientOptions { tls_ca: None, ..options(&files) });
    assert!(assert_rejects(absent, Error::Config, "tls_ca").expected.contains(&address));
    refused(&address, &ClientOptions { tls_ca: Some("nonsense".into()), ..options(&files) }, &[]);
}

#[test]
fn an_expired_certificate_is_refused() {
    let files = files(true);
    let worker = served(&files);
    let address = format!("https://localhost:{}", worker.address.rsplit(':').next().unwrap());
    refused(&address, &options(&files), &["certificate", "expired"]);
}

#[test]
fn addresses_that_nobody_has_say_which() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let options = ClientOptions { connect_timeout: Duration::from_secs(2), ..ClientOptions::default() };
    refused(&closed, &options, &["refused", "check that the worker is running"]);
    refused("http://no-such-host.invalid:50051", &options, &[]);
    for wrong in ["localhost:50051", "ftp://localhost:1", "http://localhost", "", "http://"] {
        assert_rejects(tried(wrong, &options), Error::Config, "address");
    }
    let plain = Process::start(&[]);
    let files = files(false);
    refused(&plain.address.replace("http", "https"), &self::options(&files), &[]);
    let few = RemoteVecEnv::new(&[&plain.address, &plain.address], &EnvOptions::new("CartPole-v1", 1, 0), &options);
    assert_eq!(assert_rejects(few, Error::Config, "num_envs").got, "1");
    assert!(RemoteVecEnv::new::<&str>(&[], &EnvOptions::new("CartPole-v1", 1, 0), &options).is_err());
}

#[test]
fn it_refuses_to_start_where_it_would_be_open_and_says_why() {
    let files = files(false);
    let (cert, key, token) = (&files.cert[..], &files.key[..], &files.token[..]);
    for (arguments, says) in [
        (&["--bind", "0.0.0.0:0"][..], &["--tls-cert", "--tls-key", "--token-file", "bind 127.0.0.1"][..]),
        (&["--bind", "0.0.0.0:0", "--token-file", token], &["--tls-cert"]),
        (&["--bind", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key], &["--token-file"]),
        (&["--tls-cert", cert], &["--tls-cert alone"]),
        (&["--tls-cert", key, "--tls-key", cert], &["tls_cert, tls_key"]),
        (&["--tls-cert", "/no/such/file"], &["/no/such/file"]),
        (&["--bind", "here"], &["--bind", "\"here\""]),
        (&["--max-sessions", "0"], &["max_sessions"]),
        (&["--max-sessions"], &["--max-sessions", "a value"]),
        (&["--what"], &["--what", "--help"]),
        (&["--metrics", "0.0.0.0:0"], &["metrics", "loopback"]),
    ] {
        let ended = command(arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(ended.stdout.is_empty());
        for word in says {
            assert!(said.contains(word), "{word} is not in {said:?}");
        }
    }
    let help = command(&["--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("--token-file"));
}
