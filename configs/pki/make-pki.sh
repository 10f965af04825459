#!/bin/sh
# Certificates for a plant: one authority, one broker, one for every node and every role.
#
#   make-pki.sh DIR ca                          the authority (once; its key belongs on no other machine)
#   make-pki.sh DIR broker HOST [HOST|ADDR …]   the broker's, for each name by which it is reached
#   make-pki.sh DIR client NAME …               edge-0001, plant-collector, plant-operator, plant-viewer, …
#   make-pki.sh DIR revoke NAME …               takes a certificate back, and writes the list of these
#
# A certificate's name (CN) is what the broker takes for the user's name (use_identity_as_username):
# a box's is its node id. DAYS=825 (1 to 3650) says how long the next certificates hold.
# Nothing that is there is overwritten: remove a file to have it made again.
set -eu
umask 077

say() { echo "make-pki.sh: $*" >&2; exit 2; }

[ $# -ge 2 ] || say "usage: make-pki.sh DIR ca | broker HOST … | client NAME … | revoke NAME …"
dir=$1 what=$2
shift 2
days=${DAYS:-825}
case $days in *[!0-9]* | "") say "DAYS is \"$days\"; write a number of days" ;; esac
mkdir -p "$dir"
cd "$dir"

# sound NAME: an id as the agent wants it. A wildcard or a slash in it would bend access rules.
sound() {
    case $1 in
    *[!a-z0-9-]* | -* | "" | ?) say "\"$1\" is no name: 2 to 63 characters of a-z, 0-9 and -" ;;
    esac
    [ ${#1} -le 63 ] || say "\"$1\" is longer than 63 characters"
}

config() {
    # $1: usage (serverAuth or clientAuth), $2: more extensions
    cat <<CONFIG
[ca]
default_ca = own
[own]
database = ca.index
unique_subject = no
rand_serial = yes
new_certs_dir = issued
certificate = plant-ca.crt
private_key = plant-ca.key
default_md = sha256
default_crl_days = 3650
policy = name_only
x509_extensions = ext
[name_only]
commonName = supplied
[ext]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = $1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
$2
CONFIG
}

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

authority() {
    [ ! -e plant-ca.key ] || say "$dir/plant-ca.key is there already"
    new_key plant-ca.key
    openssl req -x509 -new -key plant-ca.key -sha256 -days 3650 -subj "/CN=edgeagent plant CA" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out plant-ca.crt
    mkdir -p issued
    : >ca.index
    config clientAuth "" >ca.conf
    openssl ca -config ca.conf -gencrl -out crl.pem 2>/dev/null
    chmod 0400 plant-ca.key
    chmod 0444 plant-ca.crt crl.pem
}

issue() {
    # $1: file, $2: CN, $3: usage, $4: more extensions
    [ -e plant-ca.key ] || say "there is no authority in $dir yet: make-pki.sh $dir ca"
    [ ! -e "$1.crt" ] || say "$dir/$1.crt is there already"
    new_key "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
    config "$3" "$4" >ca.conf
    openssl ca -batch -notext -config ca.conf -days "$days" -in "$1.csr" -out "$1.crt" 2>ca.err ||
        { cat ca.err >&2; exit 1; }
    rm -f "$1.csr" ca.err
    chmod 0400 "$1.key"
    chmod 0444 "$1.crt"
}

case $what in
ca) authority ;;
broker)
    [ $# -ge 1 ] || say "by which names is the broker reached? make-pki.sh DIR broker broker.plant 10.0.0.5"
    names=""
    for name in "$@"; do
        case $name in
        *[!A-Za-z0-9.:-]* | "") say "\"$name\" is no host name and no address" ;;
        *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$name" ;;
        *) names="$names,DNS:$name" ;;
        esac
    done
    issue broker "$1" serverAuth "subjectAltName = ${names#,}"
    ;;
client)
    [ $# -ge 1 ] || say "for whom? make-pki.sh DIR client edge-0001 plant-collector"
    for name in "$@"; do
        sound "$name"
        case $name in broker | plant-ca) say "\"$name\" is taken" ;; esac
        rm -f "$name.key" # of a certificate that was taken back
        issue "$name" "$name" clientAuth ""
    done
    ;;
revoke)
    [ $# -ge 1 ] || say "whose? make-pki.sh DIR revoke edge-0001"
    for name in "$@"; do
        [ -e "$name.crt" ] || say "there is no $dir/$name.crt"
        openssl ca -config ca.conf -revoke "$name.crt" 2>/dev/null
        mv -f "$name.crt" "$name.crt.revoked"
    done
    rm -f crl.pem
    openssl ca -config ca.conf -gencrl -out crl.pem 2>/dev/null
    chmod 0444 crl.pem
    ;;
*) say "\"$what\" is none of ca, broker, client and revoke" ;;
esac
