/** Lists in pages: `for await` over all items, or `await` one page at a time. */

import { UnreadableAnswer } from "./errors.js";

interface Fetched<T> {
    items: T[];
    next_cursor?: string | null;
}

/** Fetches the page at a cursor; the first one without. */
type Fetch<T> = (cursor?: string) => Promise<Fetched<T>>;

/** A page of a list. `for await` continues with all later pages, each fetched when it is reached. */
export class Page<T> implements AsyncIterable<T> {
    readonly #fetch: Fetch<T>;
    /** The items of this page only. */
    readonly items: T[];
    /** The cursor of the next page; undefined on the last one. */
    readonly nextCursor: string | undefined;

    constructor(fetch: Fetch<T>, fetched: Fetched<T>) {
        if (!Array.isArray(fetched.items)) throw new UnreadableAnswer("a list was answered without items");
        this.#fetch = fetch;
        this.items = fetched.items;
        this.nextCursor = fetched.next_cursor ?? undefined;
    }

    /** Return the next page; undefined if this is the last. */
    async nextPage(): Promise<Page<T> | undefined> {
        if (this.nextCursor === undefined) return undefined;
        return new Page(this.#fetch, await this.#fetch(this.nextCursor));
    }

    async *[Symbol.asyncIterator](): AsyncIterator<T> {
        let page: Page<T> | undefined = this;
        while (page !== undefined) {
            yield* page.items;
            page = await page.nextPage();
        }
    }
}

/** A list not fetched yet: `for await (const item of …)` iterates over all items, `await …` returns the first page. */
export class Pager<T> implements AsyncIterable<T>, PromiseLike<Page<T>> {
    readonly #fetch: Fetch<T>;

    constructor(fetch: Fetch<T>) {
        this.#fetch = fetch;
    }

    then<A = Page<T>, B = never>(
        fulfilled?: ((page: Page<T>) => A | PromiseLike<A>) | null,
        rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
    ): Promise<A | B> {
        return this.#first().then(fulfilled, rejected);
    }

    async *[Symbol.asyncIterator](): AsyncIterator<T> {
        yield* await this.#first();
    }

    async #first(): Promise<Page<T>> {
        return new Page(this.#fetch, await this.#fetch());
    }
}
