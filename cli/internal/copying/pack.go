package copying

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"staddle.internal/kit/fault"
	"staddle.internal/kit/tartree"
)

// openPath opens a file or folder for nothing but to be looked at.
const openPath = unix.O_PATH

// pack packs the file or folder that was opened.
func pack(ctx context.Context, to io.Writer, name string, place *os.File, o tartree.PackOptions) (report tartree.Report, err error) {
	info, err := place.Stat()
	if err != nil {
		return report, err
	}
	switch {
	case info.IsDir():
		folder, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(place.Fd())))
		if err != nil {
			return report, err
		}
		report, err = tartree.PackFolder(ctx, to, name, folder, o)
		return report, errors.Join(err, folder.Close())
	case info.Mode().IsRegular():
		f, err := tartree.Reopen(place)
		if err != nil {
			return report, err
		}
		report, err = tartree.PackFile(ctx, to, name, f, o)
		return report, errors.Join(err, f.Close())
	}
	return report, fault.New(fault.Invalid, "%s is neither a file nor a folder", place.Name())
}
