# What the scripts of the development stack share: where things are, how docker is called here, and what the machine lacks for it.
# shellcheck shell=bash
stack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$stack/../.." && pwd)
# Another project is another stack beside the first, with volumes of its own. Its coordinator needs another port.
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-staddle}
export COORDINATOR_PORT=${COORDINATOR_PORT:-18443}
operator=$tree/.cache/compose/$COMPOSE_PROJECT_NAME
# The Debian whose C library is not older than that of the machine that builds: its own, else the newest.
suite=$( (. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") 2>/dev/null || echo trixie)
packages=ca-certificates,curl,libseccomp2,openssl
sudo=$([ "$(id -u)" = 0 ] || echo sudo)

say() { printf '%s\n' "$*"; }
die() { printf 'compose: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'try: %s\n' "$2" >&2; exit 1; }

# compose_command prints the words that call compose: the plugin of docker, or the program from before it.
compose_command() { if docker compose version >/dev/null 2>&1; then echo docker compose; else echo docker-compose; fi; }
compose() {
  # shellcheck disable=SC2046 # one word or two
  $(compose_command) --project-directory "$stack" -f "$stack/compose.yaml" "$@"
}

# mine KIND prints what docker has of this stack: container, network or volume. Further arguments are docker's.
mine() { docker "$1" ls -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" "${@:2}"; }
# container SERVICE prints the id of its container, also of one that has ended.
container() { mine container -a --filter "label=com.docker.compose.service=$1"; }
# runners prints the services that are runners.
runners() { mine container -a --filter label=staddle.runner | xargs -r docker inspect -f '{{index .Config.Labels "com.docker.compose.service"}}' | sort; }

# check_tools names everything that is missing at once, with the command that installs it.
check_tools() {
  local missing=() install=()
  command -v docker >/dev/null || { missing+=(docker) install+=(docker.io); }
  docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || { missing+=("docker compose") install+=(docker-compose); }
  # Of use only where the base has to be made.
  if [ -z "${BASE_IMAGE:-}" ] && ! { command -v debootstrap || [ -x /usr/sbin/debootstrap ] || docker image inspect "$(base_name)"; } >/dev/null 2>&1; then
    missing+=(debootstrap) install+=(debootstrap)
  fi
  if ((${#missing[@]})); then
    (IFS=, && echo "compose: this machine lacks ${missing[*]}") | sed 's/,/, /g' >&2
    command -v apt-get >/dev/null || { echo "install it in the way of your system; BASE_IMAGE=debian:$suite does without debootstrap" >&2; exit 2; }
    echo "install it with: ${sudo:+sudo }apt-get install -y ${install[*]}" >&2
    exit 2
  fi
  check_daemon
}

# check_daemon tells apart that there is no daemon and that this person may not speak to it.
check_daemon() {
  local answer
  answer=$(docker version --format '{{.Server.Version}}' 2>&1) && return
  case $answer in
    *"permission denied"*) die "docker refuses you: ${answer##*$'\n'}" "sudo make compose-up, or for good: sudo usermod -aG docker $(id -un), and log in again" ;;
    *)
      if [ -d /run/systemd/system ]; then die "docker does not answer: ${answer##*$'\n'}" "sudo systemctl enable --now docker"; fi
      die "docker does not answer: ${answer##*$'\n'}" "${sudo:+sudo }dockerd &"
      ;;
  esac
}

base_name() { echo "staddle-base:$suite-$(printf '%s' "$packages" | cksum | cut -d' ' -f1)"; }

# identity copies the operator's identity out of the coordinator, for this person alone.
identity() {
  local from file
  from=$(container coordinator)
  mkdir -p "$operator" && chmod 0700 "$operator"
  for file in ca.crt operator.crt operator.key; do docker cp "$from:/etc/staddle/pki/$file" "$operator/$file" >/dev/null; done
}
