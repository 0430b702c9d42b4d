package sandboxhost

import (
	"context"
	"errors"

	"staddle.internal/kit/journal"
)

// kept is a journal that is open while its member runs. Those that start after
// it may use it.
type kept struct {
	options journal.Options
	*journal.Journal
}

func (k *kept) run(ctx context.Context, ready func()) (err error) {
	if k.Journal, _, err = journal.Open(k.options); err != nil { // that a file was set aside is logged there
		return err
	}
	ctx, stop := k.While(ctx) // without its notes this process must not go on
	defer stop()
	ready()
	<-ctx.Done()
	return errors.Join(context.Cause(ctx), k.Close())
}
