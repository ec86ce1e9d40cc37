//! TLS, tokens, and unsafe options that a worker rejects.

use std::time::{Duration, Instant};

use crate::support::process::{Process, command};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Error, ResetOptions, Result, Seeds, VectorEnv};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Returns a certificate for `localhost`, its key and the certificate of its CA, as PEM.
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

fn start_worker(files: &Files) -> Process {
    let Files { cert, key, token, .. } = files;
    Process::start(&["--bind", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--token-file", token])
}

fn options(files: &Files) -> ClientOptions {
    let tls_ca = Some(files.ca.clone());
    ClientOptions { token: Some(TOKEN.into()), tls_ca, connect_timeout: Duration::from_secs(2), ..Default::default() }
}

fn connect(address: &str, options: &ClientOptions) -> Result<RemoteVecEnv> {
    let start = Instant::now();
    let result = RemoteVecEnv::new(&[address], &EnvOptions::new("CartPole-v1", 1, 0), options);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    result
}

/// Asserts that connecting fails with an error that contains the texts and the address.
fn assert_connection_fails(address: &str, options: &ClientOptions, texts: &[&str]) {
    let error = connect(address, options).unwrap_err().to_string();
    for text in texts.iter().chain(&[address]) {
        assert!(error.contains(text), "{text:?} is not in {error:?}");
    }
}

#[test]
fn remote_clients_need_tls_and_the_token() {
    let files = files(false);
    let worker = start_worker(&files);
    let port = worker.address.rsplit(':').next().unwrap();
    let address = format!("https://localhost:{port}");
    let mut env = connect(&address, &options(&files)).unwrap();
    env.reset(Seeds::Base(0), None, &ResetOptions::default(), &mut [0.0; 4]).unwrap();
    let with = |token: Option<&str>| ClientOptions { token: token.map(str::to_owned), ..options(&files) };
    for (token, got) in [
        (None, "no token"),
        (Some("0123456789abcdef0123456789abcdeF"), "a different token"),
        (Some(""), "a different token"),
    ] {
        let rejected = assert_rejects(connect(&address, &with(token)), Error::Config, "token");
        assert!(rejected.got == got && rejected.expected.contains(&address), "{rejected}");
        assert!(rejected.hint.contains("--token-file"), "{rejected}");
    }
    let plain = format!("http://localhost:{port}");
    assert_connection_fails(&plain, &options(&files), &["TLS"]);
    let by_ip = format!("https://127.0.0.1:{port}");
    assert_connection_fails(&by_ip, &options(&files), &["certificate"]);
    connect(&by_ip, &ClientOptions { tls_domain: Some("localhost".into()), ..options(&files) }).unwrap();
    let other_ca = ClientOptions { tls_ca: Some(certificate(false)[2].clone()), ..options(&files) };
    assert_connection_fails(&address, &other_ca, &["certificate"]);
    let without_ca = connect(&address, &ClientOptions { tls_ca: None, ..options(&files) });
    assert!(assert_rejects(without_ca, Error::Config, "tls_ca").expected.contains(&address));
    assert_connection_fails(&address, &ClientOptions { tls_ca: Some("nonsense".into()), ..options(&files) }, &[]);
}

#[test]
fn expired_certificates_are_rejected() {
    let files = files(true);
    let worker = start_worker(&files);
    let address = format!("https://localhost:{}", worker.address.rsplit(':').next().unwrap());
    assert_connection_fails(&address, &options(&files), &["certificate", "expired"]);
}

#[test]
fn errors_of_invalid_addresses_name_the_address() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let options = ClientOptions { connect_timeout: Duration::from_secs(2), ..ClientOptions::default() };
    assert_connection_fails(&closed, &options, &["refused", "check that the worker is running"]);
    assert_connection_fails("http://no-such-host.invalid:50051", &options, &[]);
    for wrong in ["localhost:50051", "ftp://localhost:1", "http://localhost", "", "http://"] {
        assert_rejects(connect(wrong, &options), Error::Config, "address");
    }
    let plain = Process::start(&[]);
    let files = files(false);
    assert_connection_fails(&plain.address.replace("http", "https"), &self::options(&files), &[]);
    let result = RemoteVecEnv::new(&[&plain.address, &plain.address], &EnvOptions::new("CartPole-v1", 1, 0), &options);
    assert_eq!(assert_rejects(result, Error::Config, "num_envs").got, "1");
    assert!(RemoteVecEnv::new::<&str>(&[], &EnvOptions::new("CartPole-v1", 1, 0), &options).is_err());
}

#[test]
fn workers_reject_invalid_and_unsafe_options() {
    let files = files(false);
    let (cert, key, token) = (&files.cert[..], &files.key[..], &files.token[..]);
    for (arguments, texts) in [
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
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(ended.stdout.is_empty());
        for text in texts {
            assert!(errors.contains(text), "{text} is not in {errors:?}");
        }
    }
    let help = command(&["--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("--token-file"));
}
