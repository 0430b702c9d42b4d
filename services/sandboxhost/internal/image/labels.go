package image

import (
	"context"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"google.golang.org/grpc"

	"staddle.internal/kit/fault"
)

// What is known of an image beside its content is kept at its record in the runtime:
// there it is durable, goes with the image, and is seen by other tools.
const (
	// pinnedLabel with pinnedValue is the one by which containerd's own tools pin.
	pinnedLabel = "io.cri-containerd.pinned"
	pinnedValue = "pinned"
	// importedLabel marks images that no registry may be able to give again, with the
	// time of the import.
	importedLabel = "staddle.internal/imported"
	// usedLabel is when the last sandbox that asked for it was gone, or nowValue.
	usedLabel = "staddle.internal/last-used"
	// nowValue says that a sandbox asks for it. Once found without one, after whatever
	// happened to us, it is as if that had just gone.
	nowValue = "now"
)

// labelled is what the labels of a record say.
type labelled struct {
	pinned   bool
	imported time.Time // zero for one that came from a registry
	used     time.Time // never before it was made or changed last
	now      bool      // a sandbox was noted
}

func labelsOf(record images.Image) labelled {
	l := labelled{
		pinned: record.Labels[pinnedLabel] == pinnedValue,
		used:   record.UpdatedAt, now: record.Labels[usedLabel] == nowValue,
	}
	if record.CreatedAt.After(l.used) {
		l.used = record.CreatedAt
	}
	if used, err := time.Parse(time.RFC3339, record.Labels[usedLabel]); err == nil && used.After(l.used) {
		l.used = used
	}
	if said, ok := record.Labels[importedLabel]; ok {
		l.imported = record.UpdatedAt // by a release that did not note when
		if at, err := time.Parse(time.RFC3339, said); err == nil {
			l.imported = at
		}
	}
	return l
}

// setLabel changes one label of a record and nothing else; an empty value removes it.
func setLabel(ctx context.Context, c *containerd.Client, name, label, value string) error {
	_, err := c.ImageService().Update(ctx, images.Image{Name: name, Labels: map[string]string{label: value}}, "labels."+label)
	return err
}

// keeping makes every connection that ask returns one whose pulls leave the records of
// images as they are: by itself the runtime's client replaces a record before it knows
// whether the image can be used, and with it all labels, also the pin.
func keeping(ask func() (*containerd.Client, error)) func() (*containerd.Client, error) {
	var mu sync.Mutex
	var of, kept *containerd.Client
	return func() (*containerd.Client, error) {
		c, err := ask()
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if of == c {
			return kept, nil
		}
		conn, ok := c.Conn().(*grpc.ClientConn)
		if !ok {
			return nil, fault.New(fault.Internal, "connection to containerd is a %T", c.Conn())
		}
		k, err := containerd.NewWithConn(conn, containerd.WithDefaultNamespace(c.DefaultNamespace()),
			containerd.WithServices(containerd.WithImageStore(pulledRecords{c.ImageService()})))
		if err != nil {
			return nil, err
		}
		of, kept = c, k
		return kept, nil
	}
}

// heldBackKey marks what a pull does.
type heldBackKey struct{}

// holdBack makes the record of an image that is pulled with ctx none but in name: who
// pulls makes it once the image is known to be of use.
func holdBack(ctx context.Context) context.Context {
	return context.WithValue(ctx, heldBackKey{}, true)
}

// pulledRecords is the records of images, but for those that a pull would make.
type pulledRecords struct{ images.Store }

// Create makes a record, or only seems to.
func (p pulledRecords) Create(ctx context.Context, record images.Image) (images.Image, error) {
	if ctx.Value(heldBackKey{}) != nil {
		return record, nil
	}
	return p.Store.Create(ctx, record)
}
