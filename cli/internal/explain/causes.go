package explain

import "strings"

const (
	makeIt    = "make on the node what the cause names; nothing has to be started anew"
	askLess   = "ask for less, or set the key that the cause names in node.yaml and run on the node: staddle component restart sandboxhost"
	pushAnew  = "push the image anew, or name another one: staddle apply -f FILE"
	whichUser = "give a number, or a name that the image has in /etc/passwd or /etc/group: staddle apply -f FILE"
)

// byCause is what to do next about the reason of a fault, where more is known than by the reason
// of the status alone.
var byCause = map[string]string{
	"HOST_PATH_MISSING":            makeIt,
	"DEVICE_MISSING":               makeIt,
	"HOST_PATH_ESCAPES":            "name the folder that the link leads to, and allow it in node.yaml",
	"RUNS_AS_ROOT":                 "set user in the spec: staddle apply -f FILE",
	"NO_SUCH_USER":                 whichUser,
	"NO_SUCH_GROUP":                whichUser,
	"USER_NAMESPACES_DISABLED":     "leave user_namespace out, or set user_namespaces.ranges in the node.yaml of its node",
	"USER_NAMESPACES_UNSUPPORTED":  "leave user_namespace out, or choose a node with a newer kernel and another filesystem",
	"USER_NOT_MAPPED":              "set user and groups to ids below 65536: staddle apply -f FILE",
	"NO_FREE_IDS":                  "set more user_namespaces.ranges in the node.yaml of its node, or run fewer sandboxes with a user namespace",
	"NETWORK_GROUPS_UNSUPPORTED":   "leave network_group out, or choose a node whose kernel has nftables for bridges",
	"PRIVILEGED_IN_USER_NAMESPACE": "leave out privileged or user_namespace: staddle apply -f FILE",
	"SYSCTL_NEEDS_NETWORK":         "leave the sysctl out, or use network: sandbox",
	"COMMAND_NOT_FOUND":            "name a program that the image has: staddle apply -f FILE",
	"COMMAND_NOT_EXECUTABLE":       "name a program that can be executed: staddle apply -f FILE",
	"NO_COMMAND":                   "set command or args, the image names no program: staddle apply -f FILE",
	"REGISTRY_UNREACHABLE":         "see whether the node reaches the registry, or bring the image: staddle image import FILE",
	"REGISTRY_CONFIG_INVALID":      "mend the file of the registry that the cause names; nothing has to be started anew",
	"IMAGE_NOT_PRESENT":            "on the node: staddle image pull IMAGE, or staddle image import FILE",
	"IMAGE_BROKEN":                 pushAnew,
	"IMAGE_PART_BROKEN":            "see whether the registry or a mirror of it gives out what was damaged; it is fetched again by itself",
	"IMAGE_OTHER_PLATFORM":         "push the image for the platform of the node, or choose another node",
	"IMAGE_TOO_LARGE":              pushAnew,
	"INIT_NOT_INSTALLED":           "put staddle-init beside staddle-node on its node",
	"SECRET_NOT_TEXT":              "mount the secret as a file, or set it to text without a zero byte",
	"DISK_FULL":                    "make room on the disk of the node: staddle node status NODE",
	"HOST_PORT_TAKEN":              "publish another port, or remove the sandbox that the cause names",
	"HOST_PORT_IN_USE":             "publish another port, or end on the node what listens there",
	"HOST_ADDRESS_MISSING":         "publish at an address that the node has",
	"LOCAL_NET_DISABLED":           "publish at another address, or set network.disable_local_net of the node to false",
}

// nextOf is what to do next about the fault behind a status. Empty if there is nothing special.
func nextOf(cause string) string {
	if strings.HasSuffix(cause, "_NOT_ALLOWED") {
		return askLess
	}
	return byCause[cause]
}
